"""The faults of a run with target, time and duration; they depend only on the seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

GATEWAYS: Final = ("gateway-0", "gateway-1")
WORKERS: Final = ("worker-0", "worker-1", "worker-2")
#: A target that stands for all of them.
EVERYONE: Final = "everyone"
REDIS: Final = "redis"

#: Setting of the workers; durations of faults depend on it.
LEASE_MS: Final = 1500
_LEASE_S = LEASE_MS / 1000
#: No faults until all processes have started.
_QUIET_S = 1.5
_MIN_GAP_S, _MAX_GAP_S = 0.3, 2.6
#: Long runs end by killing workers one by one without other faults, to measure how soon their jobs
#: continue. The processes first get time to recover from earlier faults.
_CALM_SHARE, _MIN_CALM_S, _MAX_CALM_S = 0.15, 15.0, 25.0
_CALM_BEFORE_S, _CALM_GAP_S = 10.0, 4.5


class On(str, Enum):
    """The Redis topology of a run."""

    ONE = "one"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class FaultKind(str, Enum):
    """All kinds of faults."""

    KILL_WORKER = "kill -9 a worker"
    KILL_GATEWAY = "kill -9 a gateway"
    KILL_REDIS = "kill -9 Redis"
    FREEZE_WORKER = "freeze a worker"
    FREEZE_GATEWAY = "freeze a gateway"
    FREEZE_REDIS = "freeze Redis"
    DRAIN_WORKER = "stop a worker gracefully"
    DRAIN_GATEWAY = "stop a gateway gracefully"
    RESTART_REDIS = "restart Redis gracefully"
    CUT = "cut connections"
    LOSE_REPLIES = "lose replies"
    DELAY = "delay"
    SILENCE = "half-open connections"
    DEAF = "replies never arrive"
    FLUSH_SCRIPTS = "SCRIPT FLUSH"
    DESTROY_GROUP = "XGROUP DESTROY"
    KILL_MASTER = "kill -9 a master"
    FREEZE_MASTER = "freeze a master"
    FAIL_OVER = "planned failover"
    RESHARD = "move a partition"


#: How often each kind occurs per round on one server, after each has occurred once.
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
#: The same for several servers. There are no proxies between them and their clients, so network
#: faults are tested on one server only.
_WEIGHTS_OF_MANY: Final = {
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
_WEIGHTS_BY_TOPOLOGY: Final = {
    On.ONE: _WEIGHTS,
    On.SENTINEL: _WEIGHTS_OF_MANY,
    On.CLUSTER: {**_WEIGHTS_OF_MANY, FaultKind.RESHARD: 4},
}


MASTER_FAULTS: Final = (
    FaultKind.KILL_MASTER,
    FaultKind.FREEZE_MASTER,
    FaultKind.FAIL_OVER,
    FaultKind.RESHARD,
)


@dataclass(frozen=True)
class Fault:
    """One fault."""

    at_s: float
    kind: FaultKind
    target: str
    #: Duration of the fault, or of the target's downtime.
    seconds: float = 0.0
    #: Number of lost replies, or delay of each packet in milliseconds.
    amount: int = 0
    #: True if no other fault is active.
    calm: bool = False

    def __str__(self) -> str:
        text = f"{self.at_s:6.1f} s  {self.kind.value}: {self.target}"
        if self.seconds:
            text += f", {self.seconds:.1f} s"
        if self.amount:
            text += f", {self.amount} {'ms' if self.kind is FaultKind.DELAY else 'times'}"
        if self.calm:
            text += ", no other fault"
        return text


def kinds_on(on: On) -> set[FaultKind]:
    """All kinds of faults on a topology."""
    return set(_WEIGHTS_BY_TOPOLOGY[on])


def make_plan(seed: int, seconds: float, on: On = On.ONE) -> list[Fault]:
    """The faults of a run; a longer run with the same seed starts with the same ones."""
    source = random.Random(f"plan {seed}")
    plan: list[Fault] = []
    at_s = _QUIET_S
    calm_s = min(seconds * _CALM_SHARE, _MAX_CALM_S)
    if calm_s < _MIN_CALM_S:
        calm_s = 0.0
    for kind in _kinds(source, _WEIGHTS_BY_TOPOLOGY[on]):
        fault = _draw(source, kind, round(at_s, 2))
        if fault.at_s >= seconds - calm_s:
            break
        plan.append(fault)
        at_s += source.uniform(_MIN_GAP_S, _MAX_GAP_S)
    if calm_s:
        plan += _calm(source, seconds - calm_s + _CALM_BEFORE_S, seconds)
    return plan


def _calm(source: random.Random, at_s: float, until_s: float) -> Iterator[Fault]:
    for target in source.sample(WORKERS, len(WORKERS)):
        if at_s < until_s:
            yield Fault(round(at_s, 2), FaultKind.KILL_WORKER, target, calm=True)
        at_s += _CALM_GAP_S


def _kinds(source: random.Random, weights: Mapping[FaultKind, int]) -> Iterator[FaultKind]:
    """Each kind once, then shuffled rounds, so that each kind occurs regularly."""
    once = [kind for kind in FaultKind if kind in weights]
    source.shuffle(once)
    yield from once
    while True:
        round_ = [kind for kind, times in weights.items() for _ in range(times)]
        source.shuffle(round_)
        yield from round_


def _draw(source: random.Random, kind: FaultKind, at_s: float) -> Fault:
    seconds, amount = 0.0, 0
    if kind in _REDIS_FAULTS:
        target = REDIS
    elif kind in _WORKER_FAULTS:
        target = source.choice(WORKERS)
    elif kind in _GATEWAY_FAULTS:
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
    elif kind is FaultKind.FREEZE_MASTER:  # some shorter and some longer than the failover timeout
        seconds = source.uniform(0.5, 3.5)
    return Fault(at_s, kind, target, round(seconds, 2), amount)


_REDIS_FAULTS = (
    FaultKind.KILL_REDIS,
    FaultKind.FREEZE_REDIS,
    FaultKind.RESTART_REDIS,
    FaultKind.FLUSH_SCRIPTS,
    FaultKind.DESTROY_GROUP,
    *MASTER_FAULTS,
)
_WORKER_FAULTS = (FaultKind.KILL_WORKER, FaultKind.FREEZE_WORKER, FaultKind.DRAIN_WORKER)
_GATEWAY_FAULTS = (FaultKind.KILL_GATEWAY, FaultKind.FREEZE_GATEWAY, FaultKind.DRAIN_GATEWAY)
