"""A scheduler's next job: whoever takes one of its jobs has to see to that."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from functools import partial
from typing import Any, Final

from common import codec
from common.contracts.bullmq import PACKAGE, BullOpt, BullRepeat
from common.errors import SluiceError
from worker.bullmq.job import TakenJob
from worker.bullmq.line import ScriptLine, insist
from worker.bullmq.scripts import Call, QueueScripts, now_ms

log = logging.getLogger(__name__)

#: How long a worker that stops waits for these to be written.
LAST_WORD_S: Final = 2.0
_EVERY, _PATTERN = BullRepeat.EVERY.value, BullRepeat.PATTERN.value
_DATES = (BullRepeat.START_DATE.value, BullRepeat.END_DATE.value)


class Schedules:
    """Writes the next job of a scheduler while the one before it runs.

    A job that is run again asks again: the script knows which job was the last, and does nothing.
    """

    def __init__(self, line: ScriptLine, scripts: QueueScripts, patience_ms: int) -> None:
        self._line = line
        self._scripts = scripts
        self._patience_s = patience_ms / 1000
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, job: TakenJob) -> None:
        """See to it, however long the job itself takes."""
        task = asyncio.get_running_loop().create_task(self._schedule(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until everything is written, within reason."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_WORD_S)

    async def _schedule(self, job: TakenJob) -> None:
        try:
            call = self.call(job)
            if call is not None:
                await insist(partial(self._line.call, call), time.monotonic() + self._patience_s)
        except SluiceError as error:
            log.error("scheduler %s has no next job: %s", job.scheduler, error)
        except Exception:
            log.exception("scheduler %s has no next job", job.scheduler)

    def call(self, job: TakenJob) -> Call | None:
        """What writes the job after this one; None where it was the last."""
        opts = codec.loads(job.opts)
        repeat = opts.get(BullOpt.REPEAT.value) or {}
        count = int(repeat.get(BullRepeat.COUNT.value) or 0) + 1
        limit, ends_ms = repeat.get(BullRepeat.LIMIT.value), _ms(repeat.get(_DATES[1]))
        now = now_ms()
        if (limit is not None and count > limit) or (ends_ms is not None and now > ends_ms):
            return None
        if not repeat.get(_EVERY) and not repeat.get(_PATTERN):
            log.warning("scheduler %s neither has a pattern nor an interval", job.scheduler)
            return None
        since = max(now, int(opts.get(BullOpt.PREVIOUS_MS.value) or 0))
        next_ms = since
        if repeat.get(_PATTERN):
            next_ms = max(_next_of_pattern(since, repeat), since)
        opts = _next_options(opts, repeat, job.scheduler, next_ms, count)
        return self._scripts.schedule(job.scheduler, job.id, next_ms, job.data, opts)


def _next_options(
    opts: dict[str, Any], repeat: dict[str, Any], scheduler: str, next_ms: int, count: int
) -> dict[str, Any]:
    """The options of the next job, as Node's `getNextJobOpts` makes them."""
    offset = repeat.get(BullRepeat.OFFSET.value) if repeat.get(_EVERY) else None
    again = {key: value for key, value in repeat.items() if key != BullRepeat.IMMEDIATELY.value}
    again |= {date: _ms(repeat[date]) for date in _DATES if date in repeat}
    again |= {BullRepeat.OFFSET.value: offset, BullRepeat.COUNT.value: count}
    now = now_ms()
    return {
        **opts,
        BullOpt.JOB_ID.value: f"repeat:{scheduler}:{next_ms}",
        BullOpt.DELAY.value: max(next_ms + (offset or 0) - now, 0),
        BullOpt.TIMESTAMP.value: now,
        BullOpt.PREVIOUS_MS.value: next_ms,
        BullOpt.REPEAT_KEY.value: scheduler,
        BullOpt.REPEAT.value: {key: value for key, value in again.items() if value is not None},
    }


def _next_of_pattern(since_ms: int, repeat: dict[str, Any]) -> int:
    """When a cron expression is due next. What reads them is big, and rarely needed."""
    found = importlib.import_module(f"{PACKAGE}.job_scheduler").default_repeat_strategy(
        since_ms, {**repeat, BullRepeat.IMMEDIATELY.value: False}
    )
    return int(found)


def _ms(value: object) -> int | None:
    """A date of a scheduler's, which may be written in more ways than one."""
    found = importlib.import_module(f"{PACKAGE}.job_scheduler")._to_millis(value) if value else None
    return None if found is None else int(found)
