"""Builds the calls of BullMQ's scripts for one queue, as their headers define them. No I/O.

Only this module and `schedules`, which parses cron expressions, depend on internals of the package
`bullmq`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
from redis.typing import EncodableT

from sluice.common.contracts.bullmq import BullCallOpt, BullField, BullKeys, BullState
from sluice.common.features.bullmq import package
from sluice.common.features.bullmq import scripts as wrapped_scripts
from sluice.common.redis.scripts import Script, plain_script
from sluice.worker.bullmq import main
from sluice.worker.bullmq.job import LockedJob, RetentionRule

if TYPE_CHECKING:
    from sluice.common.settings.bullmq import BullmqWorkerSettings

_TOKEN, _KEEP, _COUNT = (
    BullCallOpt.TOKEN,
    BullCallOpt.KEEP,
    BullCallOpt.KEEP_COUNT,
)
_ATTEMPTS, _METRICS = BullCallOpt.ATTEMPTS, BullCallOpt.METRICS
_COMPLETED, _FAILED = BullState.COMPLETED.value, BullState.FAILED.value
_RETURN_VALUE, _FAILED_REASON = BullField.RETURN_VALUE, BullField.FAILED_REASON


class JobCompletion(NamedTuple):
    """The completion of a job. `args` are its id, its value, whether to lock the next job, and
    options."""

    key: str
    args: tuple[EncodableT, ...]


class ScriptCall(NamedTuple):
    """A script and its input: number of keys, keys, arguments."""

    script: Script
    packed: tuple[EncodableT, ...]


def now_ms() -> int:
    return int(time.time() * 1000)


class QueueScripts:
    """The calls of a worker on one queue."""

    def __init__(self, keys: BullKeys, settings: BullmqWorkerSettings) -> None:
        self.keys = keys
        self._base = keys.key("")
        self._lock_ms = settings.bullmq_lock_ms
        self._stalling = (settings.bullmq_max_stalled, settings.bullmq_stalled_interval_ms)
        self._retention = {
            _COMPLETED: settings.bullmq_remove_on_complete,
            _FAILED: settings.bullmq_remove_on_fail,
        }
        #: Options of every call that may lock a job.
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
        self._complete = wrapped_scripts.wrap_script(wrapped_scripts.COMPLETE, main.FINISH)
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
        """Lock the next job. Replies [hash, id, rate limit ms, time of the next delayed job]; the
        first is 0 if there is no job."""
        args = (self._base, now_ms(), _pack({_TOKEN: token, **self._fetch_options}))
        return ScriptCall(self._scripts[main.TAKE], (11, *self._take_keys, *args))

    def end(self, job: LockedJob, value: bytes, *, fetch: bool) -> JobCompletion:
        """The completion of a job with its value, for `complete`."""
        packed = self._packed(job, _COMPLETED, job.options.keep_completed)
        return JobCompletion(self.keys.job(job.id), (job.id, value, "1" if fetch else "", packed))

    def complete(self, ends: Sequence[JobCompletion]) -> ScriptCall:
        """Complete jobs. Replies once for each."""
        first, last = self._finish_keys[_COMPLETED]
        packed: list[EncodableT] = [13 + len(ends), *first, *last]
        packed += [end.key for end in ends]
        packed += (now_ms(), self._base, _RETURN_VALUE, _COMPLETED)
        for end in ends:
            packed += end.args
        return ScriptCall(self._complete, tuple(packed))

    def fail(
        self, job: LockedJob, reason: str, fields: Mapping[str, EncodableT], *, fetch: bool
    ) -> ScriptCall:
        """Fail a job finally, and lock the next one if `fetch`."""
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
        """Retry a job after a delay, and lock the next one if `fetch`. With `free` the attempt does
        not count."""
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
        """Retry a job at once."""
        keys = (
            *self._all("active", "wait", "paused"),
            self.keys.job(job.id),
            *self._all("meta", "events", "delayed", "prioritized", "pc", "marker", "stalled"),
        )
        push = "RPUSH" if job.options.lifo else "LPUSH"
        args = (self._base, now_ms(), push, job.id, job.token, _flatten(fields))
        return ScriptCall(self._scripts[main.RETRY], (11, *keys, *args))

    def release(self, job: LockedJob) -> ScriptCall:
        """Let another worker take a job at once. The attempt does not count."""
        keys = self._all(
            "active", "wait", "stalled", "paused", "meta", "limiter", "prioritized", "marker",
            "events",
        )  # fmt: skip
        args = (job.id, job.token, self.keys.job(job.id))
        return ScriptCall(self._scripts[main.RELEASE], (9, *keys, *args))

    def check_stalled(self) -> ScriptCall:
        """Return jobs to the queue whose lock has expired since the last check; replies their
        ids."""
        keys = self._all(
            "stalled", "wait", "active", "stalled-check", "meta", "paused", "marker", "events",
            "repeat",
        )  # fmt: skip
        most, interval_ms = self._stalling
        return ScriptCall(
            self._scripts[main.STALLED], (9, *keys, most, self._base, now_ms(), interval_ms)
        )

    def renew(self, ids: Sequence[str], tokens: Sequence[str]) -> ScriptCall:
        """Renew locks. Replies the ids of the jobs whose lock is lost."""
        args = (self._base, _pack(tokens), _pack(ids), self._lock_ms)
        return ScriptCall(self._scripts[main.RENEW], (1, self.keys.key("stalled"), *args))

    def progress(self, job_id: str, value: bytes) -> ScriptCall:
        """Set the progress of a job."""
        keys = (self.keys.job(job_id), self.keys.events, self.keys.meta)
        return ScriptCall(self._scripts[main.PROGRESS], (3, *keys, job_id, value))

    def log(self, job_id: str, line: bytes, most: int) -> ScriptCall:
        """Add a line to a job's log, and keep the newest `most` lines."""
        keys = (self.keys.job(job_id), self.keys.logs(job_id))
        return ScriptCall(self._scripts[main.LOG], (2, *keys, job_id, line, most))

    def schedule(
        self, scheduler: str, producer: str, next_ms: int, data: bytes, opts: Mapping[str, Any]
    ) -> ScriptCall:
        """Add the next job of a scheduler, unless it exists."""
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
