"""On which terms an attempt runs: time, attempts, patience. Request, then handler, then worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from common.contracts.jobs import TTL_MAX_S
from common.options import NO_OPTIONS, Backoff, JobOptions


@dataclass(frozen=True, slots=True)
class WorkerTerms:
    """What holds where neither request nor handler say otherwise."""

    max_attempts: int = 5
    #: Seconds an attempt may run; None for no limit.
    timeout_s: float | None = None
    backoff: Backoff = field(default_factory=Backoff)
    #: Seconds between asking a handler to stop and stopping it.
    cancel_grace_s: float = 1.0


@dataclass(frozen=True, slots=True)
class HandlerTerms:
    """What a handler says of itself; None where it says nothing."""

    timeout_s: float | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not 0 < self.timeout_s <= TTL_MAX_S:
            raise ValueError(
                f"timeout_s is {self.timeout_s}; it must be more than 0 and at most {TTL_MAX_S} s"
            )
        if self.max_attempts is not None and self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; it must be 1 or more")


class Wishes(NamedTuple):
    """What the request said, and how often the job was handed back unharmed."""

    max_attempts: int | None = None
    released: int = 0
    options: JobOptions = NO_OPTIONS


class Budget(NamedTuple):
    """How long an attempt may run, and who said so."""

    seconds: float | None
    named: str


NO_HANDLER_TERMS = HandlerTerms()
NO_WISHES = Wishes()


def budget(wishes: Wishes, handler: HandlerTerms, worker: WorkerTerms) -> Budget:
    """The time an attempt gets."""
    if wishes.options.timeout_s is not None:
        return Budget(wishes.options.timeout_s, "the request's timeout_s")
    if handler.timeout_s is not None:
        return Budget(handler.timeout_s, "the handler's timeout_s")
    return Budget(worker.timeout_s, "JOB_TIMEOUT_S")


def explicit_attempts(wishes: Wishes, handler: HandlerTerms) -> int | None:
    """How many attempts somebody asked for; None where nobody did."""
    return handler.max_attempts if wishes.max_attempts is None else wishes.max_attempts


def backoff(wishes: Wishes, handler: HandlerTerms, worker: WorkerTerms) -> Backoff:
    """How long to wait between attempts."""
    return wishes.options.backoff or handler.backoff or worker.backoff
