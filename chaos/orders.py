"""The jobs of a run, drawn from the seed, each with its expected outcome."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from sluice.common.contracts.jobs import Status, Task

#: Tasks of the async handler, and the task of the plain handler, which runs in a thread.
_ASYNC = (Task.CHAT, Task.PLAN, Task.TOOL, Task.RAG, Task.EMBED)
PLAIN: Final = Task.CODE
#: Duration of a job that must be canceled; otherwise it counts as stuck.
_FOREVER_MS = 600_000
DOOMED_KIND: Final = "chaos_doomed"

_DONE = frozenset({Status.DONE.value})
_ERROR = frozenset({Status.ERROR.value})
_CANCELED = frozenset({Status.CANCELED.value})


class Kind(str, Enum):
    """What happens to a job."""

    ECHO = "echo"
    SLEEP = "sleep"
    STREAM = "stream"
    TRANSIENT = "transient"
    DOOMED = "doomed"
    EXHAUSTED = "exhausted"
    HOLD_THREAD = "hold a thread"
    HOLD_LOOP = "hold the loop"
    CANCELED = "canceled"
    CANCELED_LATE = "canceled late"
    SCHEDULED = "scheduled"
    TIMEOUT = "timeout"


_WEIGHTS: Final = {
    Kind.ECHO: 40,
    Kind.SLEEP: 14,
    Kind.STREAM: 12,
    Kind.TRANSIENT: 7,
    Kind.DOOMED: 3,
    Kind.EXHAUSTED: 3,
    Kind.HOLD_THREAD: 0.8,
    Kind.HOLD_LOOP: 0.4,
    Kind.CANCELED: 6,
    Kind.CANCELED_LATE: 3,
    Kind.SCHEDULED: 7,
    Kind.TIMEOUT: 3,
}


@dataclass(frozen=True)
class Order:
    """One job to post, and its expected outcome."""

    number: int
    at_s: float
    kind: Kind
    task: str
    #: Payload: what the handler does (`chaos.handlers.Script`).
    script: dict[str, Any]
    #: Other members of the request.
    options: dict[str, Any] = field(default_factory=dict)
    may_end: frozenset[str] = _DONE
    #: Error kinds that it may end with.
    errors: frozenset[str] = frozenset()
    #: Seconds from acceptance to the cancel request; None for none.
    cancel_after_s: float | None = None
    #: True if a client watches its events to the end.
    watched: bool = False
    #: True if it is posted again with the same key after it was accepted.
    repeated: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The request body."""
        return {"task": self.task, "payload": self.script, **self.options}

    @property
    def events(self) -> int:
        """Number of events of a successful attempt."""
        return int(self.script.get("events", 0))

    @property
    def max_attempts(self) -> int | None:
        most = self.options.get("max_attempts")
        return None if most is None else int(most)

    @property
    def delay_s(self) -> float:
        return float(self.options.get("delay_s", 0.0))


def make_orders(seed: int, count: int, seconds: float) -> list[Order]:
    """The jobs of a run, ordered by time."""
    source = random.Random(f"orders {seed}")
    times = sorted(source.uniform(0.0, seconds) for _ in range(count))
    kinds = source.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    return [_draw(source, number, times[number], kinds[number]) for number in range(count)]


def _draw(source: random.Random, number: int, at_s: float, kind: Kind) -> Order:
    pause_ms = source.randint(0, 30)
    script: dict[str, Any] = {"events": source.randint(0, 3), "pause_ms": pause_ms}
    expected: dict[str, Any] = {}
    options: dict[str, Any] = {}
    plain = source.random() < 0.2
    if kind is Kind.SLEEP:
        script["pause_ms"] = source.randint(50, 500)
    elif kind is Kind.STREAM:
        script["events"] = source.randint(5, 40)
    elif kind is Kind.TRANSIENT:
        script["failures"] = source.randint(1, 2)
        options["backoff"] = {"initial_s": source.uniform(0.0, 0.4), "max_s": 1.0}
    elif kind is Kind.DOOMED:
        script["fate"] = "doomed"
        expected = {"may_end": _ERROR, "errors": frozenset({DOOMED_KIND})}
    elif kind is Kind.EXHAUSTED:
        script["fate"] = "broken"
        options = {"max_attempts": source.randint(1, 3), "backoff": {"initial_s": 0.1}}
        expected = {"may_end": _ERROR, "errors": frozenset({"RuntimeError", "attempts_exhausted"})}
    elif kind in (Kind.HOLD_THREAD, Kind.HOLD_LOOP):
        script["hold_ms"] = source.randint(1700, 2600)
        plain = kind is Kind.HOLD_THREAD
    elif kind is Kind.CANCELED:
        script |= {"pause_ms": _FOREVER_MS, "cooperative": source.random() < 0.5}
        if source.random() < 0.3:
            options["delay_s"] = source.uniform(0.5, 3.0)
        expected = {"may_end": _CANCELED, "cancel_after_s": source.uniform(0.0, 3.0)}
    elif kind is Kind.CANCELED_LATE:
        script["pause_ms"] = source.randint(0, 300)
        expected = {"may_end": _DONE | _CANCELED, "cancel_after_s": source.uniform(0.0, 0.6)}
    elif kind is Kind.SCHEDULED:
        options["delay_s"] = source.uniform(0.05, 4.0)
    elif kind is Kind.TIMEOUT:
        script |= {"pause_ms": 5000}
        options["timeout_s"] = source.uniform(0.1, 0.5)
        expected = {"may_end": _ERROR, "errors": frozenset({"timeout"})}
    task = PLAIN if plain else source.choice(_ASYNC)
    return Order(
        number=number,
        at_s=at_s,
        kind=kind,
        task=task.value,
        script=script,
        options=options,
        watched=source.random() < (0.3 if kind is Kind.STREAM else 0.05),
        repeated=source.random() < 0.05,
        **expected,
    )
