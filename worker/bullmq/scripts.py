"""BullMQ's scripts as calls on one queue, packed as their headers say; no I/O here.

Of the worker this is the only module that knows the package's insides, beside `schedules`, which
asks it when a cron expression is due.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
from redis.typing import EncodableT

from common.bullmq import package
from common.bullmq import scripts as ours
from common.contracts.bullmq import BullCallOpt, BullField, BullKeys, BullState
from common.scripts import Script, script_of
from worker.bullmq import required
from worker.bullmq.job import Keep, TakenJob

if TYPE_CHECKING:
    from common.bullmq_settings import BullmqWorkerSettings

_TOKEN, _KEEP, _COUNT = (
    BullCallOpt.TOKEN.value,
    BullCallOpt.KEEP.value,
    BullCallOpt.KEEP_COUNT.value,
)
_ATTEMPTS, _METRICS = BullCallOpt.ATTEMPTS.value, BullCallOpt.METRICS.value
_COMPLETED, _FAILED = BullState.COMPLETED.value, BullState.FAILED.value
_RETURN_VALUE, _FAILED_REASON = BullField.RETURN_VALUE.value, BullField.FAILED_REASON.value


class End(NamedTuple):
    """A job that ends well: its key, then its id, value, whether to lock the next one, options."""

    key: str
    args: tuple[EncodableT, ...]


class Call(NamedTuple):
    """A script and what it is given: number of keys, keys, arguments."""

    script: Script
    given: tuple[EncodableT, ...]


def now_ms() -> int:
    """BullMQ's clock: each worker's own."""
    return int(time.time() * 1000)


class QueueScripts:
    """What a worker asks of one queue."""

    def __init__(self, keys: BullKeys, settings: BullmqWorkerSettings) -> None:
        self.keys = keys
        self._base = keys.key("")
        self._lock_ms = settings.bullmq_lock_ms
        self._stalling = (settings.bullmq_max_stalled, settings.bullmq_stalled_interval_ms)
        self._kept = {
            _COMPLETED: settings.bullmq_remove_on_complete,
            _FAILED: settings.bullmq_remove_on_fail,
        }
        #: What goes with every call that may lock a job.
        self._taking: dict[str, Any] = {
            BullCallOpt.LOCK_MS.value: self._lock_ms,
            BullCallOpt.WORKER.value: settings.bullmq_worker_name,
        }
        if settings.bullmq_rate_max:
            self._taking[BullCallOpt.LIMITER.value] = {
                BullCallOpt.LIMITER_MAX.value: settings.bullmq_rate_max,
                BullCallOpt.LIMITER_MS.value: settings.bullmq_rate_ms,
            }
        self._scripts = {name: script_of(package.source_of(name)) for name in required.SCRIPTS}
        self._complete = ours.script(ours.COMPLETE, required.FINISH)
        self._finish_keys = {
            state: (
                self._all("wait", "active", "prioritized", "events", "stalled", "limiter")
                + self._all("delayed", "paused", "meta", "pc", state),
                self._all(f"metrics:{state}", "marker"),
            )
            for state in (_COMPLETED, _FAILED)
        }
        self._take_keys = self._all(
            "wait", "active", "prioritized", "events", "stalled", "limiter",
            "delayed", "paused", "meta", "pc", "marker",
        )  # fmt: skip

    def take(self, token: str) -> Call:
        """Lock the next job: [hash, id, limit ms, next delayed ms], the first 0 for none."""
        args = (self._base, now_ms(), _pack({_TOKEN: token, **self._taking}))
        return Call(self._scripts[required.TAKE], (11, *self._take_keys, *args))

    def end(self, job: TakenJob, value: bytes, *, fetch: bool) -> End:
        """A job that ends with its value, before the next one is locked."""
        packed = self._packed(job, _COMPLETED, job.options.keep_completed)
        return End(self.keys.job(job.id), (job.id, value, "1" if fetch else "", packed))

    def complete(self, ends: Sequence[End]) -> Call:
        """End jobs: an answer for each."""
        first, last = self._finish_keys[_COMPLETED]
        given: list[EncodableT] = [13 + len(ends), *first, *last]
        given += [end.key for end in ends]
        given += (now_ms(), self._base, _RETURN_VALUE, _COMPLETED)
        for end in ends:
            given += end.args
        return Call(self._complete, tuple(given))

    def fail(
        self, job: TakenJob, reason: str, fields: Mapping[str, EncodableT], *, fetch: bool
    ) -> Call:
        """End a job for good without a value, and lock the next one."""
        packed = self._packed(job, _FAILED, job.options.keep_failed)
        first, last = self._finish_keys[_FAILED]
        args: tuple[EncodableT, ...] = (job.id, now_ms(), _FAILED_REASON, reason, _FAILED)
        args += ("1" if fetch else "", self._base, packed, _flat(fields))
        return Call(
            self._scripts[required.FINISH], (14, *first, self.keys.job(job.id), *last, *args)
        )

    def _packed(self, job: TakenJob, state: str, keep: Keep | None) -> bytes:
        return _pack(
            {
                _TOKEN: job.token,
                _KEEP: {_COUNT: self._kept[state]} if keep is None else keep,
                _ATTEMPTS: job.options.attempts,
                _METRICS: "",
                **self._taking,
            }
        )

    def delay(
        self,
        job: TakenJob,
        delay_ms: int,
        fields: Mapping[str, EncodableT],
        *,
        free: bool,
        fetch: bool,
    ) -> Call:
        """Try a job again after a while, and lock the next one. `free`: at no attempt's cost."""
        keys = (
            *self._all("marker", "active", "prioritized", "delayed"),
            self.keys.job(job.id),
            *self._all("events", "meta", "stalled", "wait", "limiter", "pc"),
        )
        args: tuple[EncodableT, ...] = (self._base, now_ms(), job.id, job.token, delay_ms)
        args += ("1" if free else "0", _flat(fields), "1" if fetch else "0")
        packed = _pack({_TOKEN: job.token, **self._taking})
        return Call(self._scripts[required.DELAY], (11, *keys, *args, packed))

    def retry(self, job: TakenJob, fields: Mapping[str, EncodableT]) -> Call:
        """Try a job again at once."""
        keys = (
            *self._all("active", "wait", "paused"),
            self.keys.job(job.id),
            *self._all("meta", "events", "delayed", "prioritized", "pc", "marker", "stalled"),
        )
        push = "RPUSH" if job.options.lifo else "LPUSH"
        args = (self._base, now_ms(), push, job.id, job.token, _flat(fields))
        return Call(self._scripts[required.RETRY], (11, *keys, *args))

    def hand_back(self, job: TakenJob) -> Call:
        """Let somebody else take a job up at once, at no cost to it."""
        keys = self._all(
            "active", "wait", "stalled", "paused", "meta", "limiter", "prioritized", "marker",
            "events",
        )  # fmt: skip
        args = (job.id, job.token, self.keys.job(job.id))
        return Call(self._scripts[required.HAND_BACK], (9, *keys, *args))

    def look_for_stalled(self) -> Call:
        """Put jobs back whose lock has run out since the last look: their ids."""
        keys = self._all(
            "stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events",
            "repeat",
        )  # fmt: skip
        most, interval_ms = self._stalling
        return Call(
            self._scripts[required.STALLED], (9, *keys, most, self._base, now_ms(), interval_ms)
        )

    def renew(self, ids: Sequence[str], tokens: Sequence[str]) -> Call:
        """Keep these locks: the ids of those that are lost."""
        args = (self._base, _pack(tokens), _pack(ids), self._lock_ms)
        return Call(self._scripts[required.RENEW], (1, self.keys.key("stalled"), *args))

    def progress(self, job_id: str, value: bytes) -> Call:
        """Tell how far a job is."""
        keys = (self.keys.job(job_id), self.keys.events, self.keys.meta)
        return Call(self._scripts[required.PROGRESS], (3, *keys, job_id, value))

    def log(self, job_id: str, line: bytes, most: int) -> Call:
        """Add a line to a job's log, of which so many are kept."""
        keys = (self.keys.job(job_id), self.keys.logs(job_id))
        return Call(self._scripts[required.LOG], (2, *keys, job_id, line, most))

    def schedule(
        self, scheduler: str, producer: str, next_ms: int, data: bytes, opts: Mapping[str, Any]
    ) -> Call:
        """Let a scheduler have its next job, unless it has."""
        keys = (
            *self._all("repeat", "delayed", "wait", "paused", "meta", "prioritized", "marker"),
            *self._all("id", "events", "pc", producer, "active"),
        )
        args: tuple[EncodableT, ...] = (next_ms, scheduler, data, _pack(opts), now_ms())
        args += (self._base, producer)
        return Call(self._scripts[required.SCHEDULE], (12, *keys, *args))

    def _all(self, *parts: str) -> tuple[str, ...]:
        return tuple(self.keys.key(part) for part in parts)


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _flat(fields: Mapping[str, EncodableT]) -> bytes:
    return _pack([part for pair in fields.items() for part in pair]) if fields else b""
