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

from common.contracts.bullmq import BullCallOpt, BullField, BullKeys, BullState
from common.features.bullmq import package
from common.features.bullmq import scripts as ours
from common.redis.scripts import Script, plain_script
from worker.bullmq import main
from worker.bullmq.job import LockedJob, RetentionRule

if TYPE_CHECKING:
    from common.settings.bullmq import BullmqWorkerSettings

_TOKEN, _KEEP, _COUNT = (
    BullCallOpt.TOKEN,
    BullCallOpt.KEEP,
    BullCallOpt.KEEP_COUNT,
)
_ATTEMPTS, _METRICS = BullCallOpt.ATTEMPTS, BullCallOpt.METRICS
_COMPLETED, _FAILED = BullState.COMPLETED.value, BullState.FAILED.value
_RETURN_VALUE, _FAILED_REASON = BullField.RETURN_VALUE, BullField.FAILED_REASON


class JobCompletion(NamedTuple):
    """A job that ends well: its key, then its id, value, whether to lock the next one, options."""

    key: str
    args: tuple[EncodableT, ...]


class ScriptCall(NamedTuple):
    """A script and what it is given: number of keys, keys, arguments."""

    script: Script
    given: tuple[EncodableT, ...]


def now_ms() -> int:
    return int(time.time() * 1000)


class QueueScripts:
    """What a worker asks of one queue."""

    def __init__(self, keys: BullKeys, settings: BullmqWorkerSettings) -> None:
        self.keys = keys
        self._base = keys.key("")
        self._lock_ms = settings.bullmq_lock_ms
        self._stalling = (settings.bullmq_max_stalled, settings.bullmq_stalled_interval_ms)
        self._retention = {
            _COMPLETED: settings.bullmq_remove_on_complete,
            _FAILED: settings.bullmq_remove_on_fail,
        }
        #: What goes with every call that may lock a job.
        self._fetch_options: dict[str, Any] = {
            BullCallOpt.LOCK_MS: self._lock_ms,
            BullCallOpt.WORKER: settings.bullmq_worker_name,
        }
        if settings.bullmq_rate_max:
            self._fetch_options[BullCallOpt.LIMITER] = {
                BullCallOpt.LIMITER_MAX: settings.bullmq_rate_max,
                BullCallOpt.LIMITER_MS: settings.bullmq_rate_ms,
            }
        self._scripts = {name: plain_script(package.script_source(name)) for name in main.SCRIPTS}
        self._complete = ours.wrap_script(ours.COMPLETE, main.FINISH)
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

    def take(self, token: str) -> ScriptCall:
        """Lock the next job: [hash, id, limit ms, next delayed ms], the first 0 for none."""
        args = (self._base, now_ms(), _pack({_TOKEN: token, **self._fetch_options}))
        return ScriptCall(self._scripts[main.TAKE], (11, *self._take_keys, *args))

    def end(self, job: LockedJob, value: bytes, *, fetch: bool) -> JobCompletion:
        """A job that ends with its value, before the next one is locked."""
        packed = self._packed(job, _COMPLETED, job.options.keep_completed)
        return JobCompletion(self.keys.job(job.id), (job.id, value, "1" if fetch else "", packed))

    def complete(self, ends: Sequence[JobCompletion]) -> ScriptCall:
        """End jobs: an answer for each."""
        first, last = self._finish_keys[_COMPLETED]
        given: list[EncodableT] = [13 + len(ends), *first, *last]
        given += [end.key for end in ends]
        given += (now_ms(), self._base, _RETURN_VALUE, _COMPLETED)
        for end in ends:
            given += end.args
        return ScriptCall(self._complete, tuple(given))

    def fail(
        self, job: LockedJob, reason: str, fields: Mapping[str, EncodableT], *, fetch: bool
    ) -> ScriptCall:
        """End a job for good without a value, and lock the next one."""
        packed = self._packed(job, _FAILED, job.options.keep_failed)
        first, last = self._finish_keys[_FAILED]
        args: tuple[EncodableT, ...] = (job.id, now_ms(), _FAILED_REASON, reason, _FAILED)
        args += ("1" if fetch else "", self._base, packed, _flatten(fields))
        return ScriptCall(
            self._scripts[main.FINISH], (14, *first, self.keys.job(job.id), *last, *args)
        )

    def _packed(self, job: LockedJob, state: str, keep: RetentionRule | None) -> bytes:
        return _pack(
            {
                _TOKEN: job.token,
                _KEEP: {_COUNT: self._retention[state]} if keep is None else keep,
                _ATTEMPTS: job.options.attempts,
                _METRICS: "",
                **self._fetch_options,
            }
        )

    def delay(
        self,
        job: LockedJob,
        delay_ms: int,
        fields: Mapping[str, EncodableT],
        *,
        free: bool,
        fetch: bool,
    ) -> ScriptCall:
        """Try a job again after a while, and lock the next one. `free`: at no attempt's cost."""
        keys = (
            *self._all("marker", "active", "prioritized", "delayed"),
            self.keys.job(job.id),
            *self._all("events", "meta", "stalled", "wait", "limiter", "pc"),
        )
        args: tuple[EncodableT, ...] = (self._base, now_ms(), job.id, job.token, delay_ms)
        args += ("1" if free else "0", _flatten(fields), "1" if fetch else "0")
        packed = _pack({_TOKEN: job.token, **self._fetch_options})
        return ScriptCall(self._scripts[main.DELAY], (11, *keys, *args, packed))

    def retry(self, job: LockedJob, fields: Mapping[str, EncodableT]) -> ScriptCall:
        """Try a job again at once."""
        keys = (
            *self._all("active", "wait", "paused"),
            self.keys.job(job.id),
            *self._all("meta", "events", "delayed", "prioritized", "pc", "marker", "stalled"),
        )
        push = "RPUSH" if job.options.lifo else "LPUSH"
        args = (self._base, now_ms(), push, job.id, job.token, _flatten(fields))
        return ScriptCall(self._scripts[main.RETRY], (11, *keys, *args))

    def release(self, job: LockedJob) -> ScriptCall:
        """Let somebody else take a job up at once, at no cost to it."""
        keys = self._all(
            "active", "wait", "stalled", "paused", "meta", "limiter", "prioritized", "marker",
            "events",
        )  # fmt: skip
        args = (job.id, job.token, self.keys.job(job.id))
        return ScriptCall(self._scripts[main.RELEASE], (9, *keys, *args))

    def check_stalled(self) -> ScriptCall:
        """Put jobs back whose lock has run out since the last look: their ids."""
        keys = self._all(
            "stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events",
            "repeat",
        )  # fmt: skip
        most, interval_ms = self._stalling
        return ScriptCall(
            self._scripts[main.STALLED], (9, *keys, most, self._base, now_ms(), interval_ms)
        )

    def renew(self, ids: Sequence[str], tokens: Sequence[str]) -> ScriptCall:
        """Keep these locks: the ids of those that are lost."""
        args = (self._base, _pack(tokens), _pack(ids), self._lock_ms)
        return ScriptCall(self._scripts[main.RENEW], (1, self.keys.key("stalled"), *args))

    def progress(self, job_id: str, value: bytes) -> ScriptCall:
        """Tell how far a job is."""
        keys = (self.keys.job(job_id), self.keys.events, self.keys.meta)
        return ScriptCall(self._scripts[main.PROGRESS], (3, *keys, job_id, value))

    def log(self, job_id: str, line: bytes, most: int) -> ScriptCall:
        """Add a line to a job's log, of which so many are kept."""
        keys = (self.keys.job(job_id), self.keys.logs(job_id))
        return ScriptCall(self._scripts[main.LOG], (2, *keys, job_id, line, most))

    def schedule(
        self, scheduler: str, producer: str, next_ms: int, data: bytes, opts: Mapping[str, Any]
    ) -> ScriptCall:
        """Let a scheduler have its next job, unless it has."""
        keys = (
            *self._all("repeat", "delayed", "wait", "paused", "meta", "prioritized", "marker"),
            *self._all("id", "events", "pc", producer, "active"),
        )
        args: tuple[EncodableT, ...] = (next_ms, scheduler, data, _pack(opts), now_ms())
        args += (self._base, producer)
        return ScriptCall(self._scripts[main.SCHEDULE], (12, *keys, *args))

    def _all(self, *parts: str) -> tuple[str, ...]:
        return tuple(self.keys.key(part) for part in parts)


def _pack(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def _flatten(fields: Mapping[str, EncodableT]) -> bytes:
    return _pack([part for pair in fields.items() for part in pair]) if fields else b""
