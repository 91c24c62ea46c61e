"""A job of BullMQ that this worker has locked, and what its options ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from common import codec
from common.contracts.bullmq import BullCallOpt, BullField, BullOpt
from common.contracts.jobs import TTL_MAX_S
from common.options import Backoff, JobOptions
from common.store import Lease
from worker.intake import Attempt
from worker.terms import Wishes

#: Which of a queue's ended jobs are kept: count, age, limit, as the scripts want them.
Keep = Mapping[str, Any]

#: Lines kept of the log of a job that does not say how many.
MOST_LOG_LINES: Final = 1000
_COUNT: Final = BullCallOpt.KEEP_COUNT.value
_NO_WAIT: Final = Backoff(0.0, 1.0, 0.0, 0.0)
_NAME, _DATA, _OPTS, _MADE = (
    field.value.encode()
    for field in (BullField.NAME, BullField.DATA, BullField.OPTS, BullField.MADE)
)
_TIMESTAMP = BullField.TIMESTAMP.value.encode()
_PRIORITY, _STACKTRACE = BullField.PRIORITY.value.encode(), BullField.STACKTRACE.value.encode()
_DEFERRED = BullField.DEFERRED_FAILURE.value.encode()
_SCHEDULER = BullField.SCHEDULER.value.encode()


@dataclass(frozen=True, slots=True)
class BullOptions:
    """What a job's `opts` ask of a worker."""

    #: As stored: 0 and 1 both mean one try.
    attempts: int
    delay_ms: int
    keep_completed: Keep | None
    keep_failed: Keep | None
    lifo: bool
    log_lines: int
    #: Entries kept of the stack trace; None for all.
    stack_limit: int | None
    wishes: Wishes


@dataclass(slots=True)
class TakenJob:
    """A job under our lock."""

    id: str
    token: str
    name: str
    data: bytes
    opts: bytes
    options: BullOptions
    #: Attempts that were made before this one.
    made: int
    #: When it could have been taken, Unix milliseconds.
    due_ms: int
    priority: int
    #: Earlier failures, as JSON; why it must fail without being run; the scheduler it comes from.
    stacktrace: bytes
    deferred_failure: str
    scheduler: str
    #: The traceback of this attempt, once it has failed.
    fault: str = ""
    #: Whether there are steps that attempts of it have saved.
    has_steps: bool = False

    @classmethod
    def of(cls, pairs: list[bytes], job_id: str, token: str) -> TakenJob:
        """From HGETALL's reply; odd fields of a foreign writer become neutral values."""
        fields = dict(zip(pairs[::2], pairs[1::2]))
        opts = fields.get(_OPTS, b"{}")
        options = options_in(opts)
        number, text = codec.integer, codec.text
        return cls(
            job_id,
            token,
            text(fields.get(_NAME, b"")),
            fields.get(_DATA, b"null"),
            opts,
            options,
            number(fields.get(_MADE, b"0")),
            number(fields.get(_TIMESTAMP, b"0")) + options.delay_ms,
            number(fields.get(_PRIORITY, b"0")),
            fields.get(_STACKTRACE, b""),
            text(fields.get(_DEFERRED, b"")),
            text(fields.get(_SCHEDULER, b"")),
        )

    @property
    def attempt(self) -> Attempt:
        """The right to run it, as the executor knows it."""
        lease = Lease(self.id, f"{self.due_ms}-0", self.made + 1, self.token)
        return Attempt(lease, self.name, self.data, self.options.wishes)


@lru_cache(maxsize=512)
def options_in(opts: bytes) -> BullOptions:
    """What options say; most jobs of a queue have the same."""
    try:
        given = codec.loads(opts)
    except ValueError:
        given = None
    given = given if isinstance(given, dict) else {}
    attempts = _natural(given.get(BullOpt.ATTEMPTS.value)) or 0
    lines = _natural(given.get(BullOpt.KEEP_LOGS.value))
    traceparent = _traceparent(given.get(BullOpt.TELEMETRY.value))
    options = JobOptions(backoff=backoff_in(given), traceparent=traceparent)
    return BullOptions(
        attempts,
        _natural(given.get(BullOpt.DELAY.value)) or 0,
        _keep(given.get(BullOpt.REMOVE_ON_COMPLETE.value)),
        _keep(given.get(BullOpt.REMOVE_ON_FAIL.value)),
        bool(given.get(BullOpt.LIFO.value)),
        MOST_LOG_LINES if lines is None else lines,
        _natural(given.get(BullOpt.STACK_LIMIT.value)),
        Wishes(max(attempts, 1), 0, options),
    )


def backoff_in(given: Mapping[str, Any]) -> Backoff:
    """How long to wait between attempts; a job that says nothing is tried again at once."""
    backoff = given.get(BullOpt.BACKOFF.value)
    if isinstance(backoff, (int, float)) and not isinstance(backoff, bool):
        backoff = {BullOpt.DELAY.value: backoff}
    if not isinstance(backoff, dict):
        return _NO_WAIT
    delay, jitter = backoff.get(BullOpt.DELAY.value), backoff.get(BullOpt.JITTER.value)
    first_s = min(max(_number(delay), 0.0) / 1000, TTL_MAX_S)
    factor = 2.0 if backoff.get(BullOpt.BACKOFF_TYPE.value) == BullOpt.EXPONENTIAL.value else 1.0
    return Backoff(first_s, factor, TTL_MAX_S, min(max(_number(jitter), 0.0), 1.0))


def _keep(value: object) -> Keep | None:
    """None: the job does not say."""
    if value is None:
        return None
    if isinstance(value, dict):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {_COUNT: int(value)}
    return {_COUNT: 0 if value else -1}


def _natural(value: object) -> int | None:
    number = _number(value, -1.0)
    return int(number) if number >= 0 else None


def _number(value: object, default: float = 0.0) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    return default


def _traceparent(value: object) -> str | None:
    """From the carrier that BullMQ's telemetry leaves in the options: JSON in a string."""
    try:
        carrier = codec.loads(value.encode()) if isinstance(value, str) else None
    except ValueError:
        return None
    found = carrier.get("traceparent") if isinstance(carrier, dict) else None
    return found if isinstance(found, str) else None
