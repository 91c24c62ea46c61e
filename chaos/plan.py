"""What goes wrong, to whom, when and for how long: drawn from the seed and from nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

GATEWAYS: Final = ("gateway-0", "gateway-1")
WORKERS: Final = ("worker-0", "worker-1", "worker-2")
#: A target that stands for all of them at once.
EVERYONE: Final = "everyone"
REDIS: Final = "redis"

#: What workers are told; faults are measured by it.
LEASE_MS: Final = 1500
_LEASE_S = LEASE_MS / 1000
#: Nothing happens before everybody had a chance to get to work.
_QUIET_S = 1.5
_SHORTEST_GAP_S, _LONGEST_GAP_S = 0.3, 2.6
#: Long runs end with workers killed one by one while nothing else is wrong: only there it can be
#: measured how soon their jobs go on. First everybody needs time to get over what was before.
_CALM_SHARE, _SHORTEST_CALM_S, _LONGEST_CALM_S = 0.15, 15.0, 25.0
_CALM_BEFORE_S, _CALM_GAP_S = 10.0, 4.5


class On(str, Enum):
    """What a run is on."""

    ONE = "one"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class FaultKind(str, Enum):
    """Everything that may go wrong."""

    KILL_WORKER = "kill -9 a worker"
    KILL_GATEWAY = "kill -9 a gateway"
    KILL_REDIS = "kill -9 Redis"
    FREEZE_WORKER = "freeze a worker"
    FREEZE_GATEWAY = "freeze a gateway"
    FREEZE_REDIS = "freeze Redis"
    DRAIN_WORKER = "stop a worker politely"
    DRAIN_GATEWAY = "stop a gateway politely"
    RESTART_REDIS = "restart Redis politely"
    CUT = "cut connections"
    LOSE_REPLIES = "lose replies"
    DELAY = "delay"
    SILENCE = "half-open connections"
    DEAF = "replies never come"
    FLUSH_SCRIPTS = "SCRIPT FLUSH"
    DESTROY_GROUP = "XGROUP DESTROY"
    KILL_MASTER = "kill -9 a master"
    FREEZE_MASTER = "freeze a master"
    FAIL_OVER = "fail over politely"
    RESHARD = "move a partition"


#: How often each is dealt on one server, beyond once at first.
_WEIGHTS: Final = {
    FaultKind.KILL_WORKER: 5,
    FaultKind.KILL_GATEWAY: 3,
    FaultKind.KILL_REDIS: 2,
    FaultKind.FREEZE_WORKER: 5,
    FaultKind.FREEZE_GATEWAY: 1,
    FaultKind.FREEZE_REDIS: 1,
    FaultKind.DRAIN_WORKER: 3,
    FaultKind.DRAIN_GATEWAY: 1,
    FaultKind.RESTART_REDIS: 1,
    FaultKind.CUT: 3,
    FaultKind.LOSE_REPLIES: 5,
    FaultKind.DELAY: 2,
    FaultKind.SILENCE: 3,
    FaultKind.DEAF: 2,
    FaultKind.FLUSH_SCRIPTS: 2,
    FaultKind.DESTROY_GROUP: 2,
}
#: The same on several. Nobody stands between them and their clients: what happens to networks is
#: left to one.
_OF_MANY: Final = {
    FaultKind.KILL_WORKER: 2,
    FaultKind.KILL_GATEWAY: 1,
    FaultKind.FREEZE_WORKER: 2,
    FaultKind.DRAIN_WORKER: 1,
    FaultKind.FLUSH_SCRIPTS: 1,
    FaultKind.DESTROY_GROUP: 1,
    FaultKind.KILL_MASTER: 4,
    FaultKind.FREEZE_MASTER: 2,
    FaultKind.FAIL_OVER: 2,
}
_DECKS: Final = {
    On.ONE: _WEIGHTS,
    On.SENTINEL: _OF_MANY,
    On.CLUSTER: {**_OF_MANY, FaultKind.RESHARD: 4},
}


OF_MASTERS: Final = (
    FaultKind.KILL_MASTER,
    FaultKind.FREEZE_MASTER,
    FaultKind.FAIL_OVER,
    FaultKind.RESHARD,
)


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float
    kind: FaultKind
    target: str
    #: How long it lasts, or how long the target stays away.
    seconds: float = 0.0
    #: How many replies are lost, or how many milliseconds each piece of data is late.
    amount: int = 0
    #: Whether nothing else is wrong meanwhile.
    calm: bool = False

    def __str__(self) -> str:
        words = f"{self.at_s:6.1f} s  {self.kind.value}: {self.target}"
        if self.seconds:
            words += f", {self.seconds:.1f} s"
        if self.amount:
            words += f", {self.amount} {'ms' if self.kind is FaultKind.DELAY else 'times'}"
        if self.calm:
            words += ", nothing else"
        return words


def kinds_on(on: On) -> set[FaultKind]:
    """Everything that may go wrong there."""
    return set(_DECKS[on])


def make_plan(seed: int, seconds: float, on: On = On.ONE) -> list[Fault]:
    """The faults of a run; a longer run with the same seed begins with the same ones."""
    source = random.Random(f"plan {seed}")
    plan: list[Fault] = []
    at_s = _QUIET_S
    calm_s = min(seconds * _CALM_SHARE, _LONGEST_CALM_S)
    if calm_s < _SHORTEST_CALM_S:
        calm_s = 0.0
    for kind in _deal(source, _DECKS[on]):
        fault = _draw(source, kind, round(at_s, 2))
        if fault.at_s >= seconds - calm_s:
            break
        plan.append(fault)
        at_s += source.uniform(_SHORTEST_GAP_S, _LONGEST_GAP_S)
    if calm_s:
        plan += _calm(source, seconds - calm_s + _CALM_BEFORE_S, seconds)
    return plan


def _calm(source: random.Random, at_s: float, until_s: float) -> Iterator[Fault]:
    for target in source.sample(WORKERS, len(WORKERS)):
        if at_s < until_s:
            yield Fault(round(at_s, 2), FaultKind.KILL_WORKER, target, calm=True)
        at_s += _CALM_GAP_S


def _deal(source: random.Random, weights: Mapping[FaultKind, int]) -> Iterator[FaultKind]:
    """Every kind once, then deck after deck, so that no kind stays away for long."""
    once = [kind for kind in FaultKind if kind in weights]
    source.shuffle(once)
    yield from once
    while True:
        deck = [kind for kind, times in weights.items() for _ in range(times)]
        source.shuffle(deck)
        yield from deck


def _draw(source: random.Random, kind: FaultKind, at_s: float) -> Fault:
    seconds, amount = 0.0, 0
    if kind in _OF_REDIS:
        target = REDIS
    elif kind in _OF_WORKERS:
        target = source.choice(WORKERS)
    elif kind in _OF_GATEWAYS:
        target = source.choice(GATEWAYS)
    else:
        target = source.choice((*GATEWAYS, *WORKERS, EVERYONE))
    if kind is FaultKind.FREEZE_WORKER:
        seconds = source.uniform(1.1 * _LEASE_S, 2.5 * _LEASE_S)
    elif kind in (FaultKind.SILENCE, FaultKind.DEAF):
        seconds = source.uniform(1.0, 6.0)
    elif kind is FaultKind.DELAY:
        seconds, amount = source.uniform(1.0, 4.0), source.randint(20, 300)
    elif kind is FaultKind.LOSE_REPLIES:
        amount = source.randint(1, 5)
    elif kind in (FaultKind.FREEZE_GATEWAY, FaultKind.FREEZE_REDIS):
        seconds = source.uniform(0.5, 3.0)
    elif kind in (FaultKind.KILL_REDIS, FaultKind.RESTART_REDIS):
        seconds = source.uniform(0.0, 1.5)
    elif kind is FaultKind.FREEZE_MASTER:  # some before anybody noticed, and some too long
        seconds = source.uniform(0.5, 3.5)
    return Fault(at_s, kind, target, round(seconds, 2), amount)


_OF_REDIS = (
    FaultKind.KILL_REDIS,
    FaultKind.FREEZE_REDIS,
    FaultKind.RESTART_REDIS,
    FaultKind.FLUSH_SCRIPTS,
    FaultKind.DESTROY_GROUP,
    *OF_MASTERS,
)
_OF_WORKERS = (FaultKind.KILL_WORKER, FaultKind.FREEZE_WORKER, FaultKind.DRAIN_WORKER)
_OF_GATEWAYS = (FaultKind.KILL_GATEWAY, FaultKind.FREEZE_GATEWAY, FaultKind.DRAIN_GATEWAY)
