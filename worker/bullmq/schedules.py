"""Job schedulers: the worker that takes a job of a scheduler adds the next one."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from functools import partial
from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.bullmq import PACKAGE, BullOpt, BullRepeat
from sluice.common.errors import SluiceError
from sluice.worker.bullmq.job import LockedJob
from sluice.worker.bullmq.script_client import ScriptClient, retry_until
from sluice.worker.bullmq.scripts import QueueScripts, ScriptCall, now_ms

log = logging.getLogger(__name__)

#: Seconds that a stopping worker waits for pending writes.
FLUSH_TIMEOUT_S: Final = 2.0
_EVERY, _PATTERN = BullRepeat.EVERY, BullRepeat.PATTERN
_DATES = (BullRepeat.START_DATE, BullRepeat.END_DATE)


class ScheduleWriter:
    """Adds the next job of a scheduler while the current one runs.

    A retried job does it again; the script then does nothing, because the next job exists.
    """

    def __init__(self, client: ScriptClient, scripts: QueueScripts, retry_ms: int) -> None:
        self._client = client
        self._scripts = scripts
        self._retry_s = retry_ms / 1000
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, job: LockedJob) -> None:
        """Add the job after this one, in the background."""
        task = asyncio.get_running_loop().create_task(self._schedule(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait for pending writes, at most FLUSH_TIMEOUT_S."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FLUSH_TIMEOUT_S)

    async def _schedule(self, job: LockedJob) -> None:
        try:
            call = self.call(job)
            if call is not None:
                await retry_until(
                    partial(self._client.call, call), time.monotonic() + self._retry_s
                )
        except SluiceError as error:
            log.error("scheduler %s has no next job: %s", job.scheduler, error)
        except Exception:
            log.exception("scheduler %s has no next job", job.scheduler)

    def call(self, job: LockedJob) -> ScriptCall | None:
        """The call that adds the job after this one; None if this is the last."""
        opts = codec.loads_node(job.opts)
        repeat = opts.get(BullOpt.REPEAT) or {}
        count = int(repeat.get(BullRepeat.COUNT) or 0) + 1
        limit, ends_ms = repeat.get(BullRepeat.LIMIT), _to_ms(repeat.get(_DATES[1]))
        now = now_ms()
        if (limit is not None and count > limit) or (ends_ms is not None and now > ends_ms):
            return None
        if not repeat.get(_EVERY) and not repeat.get(_PATTERN):
            log.warning("scheduler %s has neither a pattern nor an interval", job.scheduler)
            return None
        since = max(now, int(opts.get(BullOpt.PREVIOUS_MS) or 0))
        next_ms = since
        if repeat.get(_PATTERN):
            next_ms = max(_next_from_pattern(since, repeat), since)
        opts = _next_options(opts, repeat, job.scheduler, next_ms, count)
        return self._scripts.schedule(job.scheduler, job.id, next_ms, job.data, opts)


def _next_options(
    opts: dict[str, Any], repeat: dict[str, Any], scheduler: str, next_ms: int, count: int
) -> dict[str, Any]:
    """The options of the next job, as Node's `getNextJobOpts` builds them."""
    offset = repeat.get(BullRepeat.OFFSET) if repeat.get(_EVERY) else None
    again = {key: value for key, value in repeat.items() if key != BullRepeat.IMMEDIATELY}
    again |= {date: _to_ms(repeat[date]) for date in _DATES if date in repeat}
    again |= {BullRepeat.OFFSET: offset, BullRepeat.COUNT: count}
    now = now_ms()
    return {
        **opts,
        BullOpt.JOB_ID: f"repeat:{scheduler}:{next_ms}",
        BullOpt.DELAY: max(next_ms + (offset or 0) - now, 0),
        BullOpt.TIMESTAMP: now,
        BullOpt.PREVIOUS_MS: next_ms,
        BullOpt.REPEAT_KEY: scheduler,
        BullOpt.REPEAT: {key: value for key, value in again.items() if value is not None},
    }


def _next_from_pattern(since_ms: int, repeat: dict[str, Any]) -> int:
    """The next time of a cron expression. The parser is imported here: it is large and rarely
    needed."""
    found = importlib.import_module(f"{PACKAGE}.job_scheduler").default_repeat_strategy(
        since_ms, {**repeat, BullRepeat.IMMEDIATELY: False}
    )
    return int(found)


def _to_ms(value: object) -> int | None:
    """Parse a date of a scheduler, which may be a number or a string."""
    found = importlib.import_module(f"{PACKAGE}.job_scheduler")._to_millis(value) if value else None
    return None if found is None else int(found)
