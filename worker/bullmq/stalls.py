"""Puts jobs back whose worker has died."""

from __future__ import annotations

import asyncio
import logging

from redis.exceptions import RedisError

from common import codec
from common.connection import TRANSIENT_ERRORS
from worker.bullmq.line import ScriptLine
from worker.bullmq.scripts import QueueScripts

log = logging.getLogger(__name__)


class StallChecker:
    """Looks at a queue's active jobs in every interval; one look does for all workers.

    A job is marked by the first look and put back by the second, unless its lock was renewed
    between them. The first look comes at once, so that a restarted worker loses no interval.
    """

    def __init__(self, line: ScriptLine, scripts: QueueScripts, interval_ms: int) -> None:
        self._line = line
        self._scripts = scripts
        self._interval_s = interval_ms / 1000
        #: Jobs that were put back by our looks.
        self.stalled = 0

    async def run(self) -> None:
        """Look until canceled."""
        while True:
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; stalled jobs are looked for later", error)
            except Exception:
                log.exception("looking for stalled jobs failed unexpectedly")
            await asyncio.sleep(self._interval_s)

    async def run_once(self) -> list[str]:
        """Look once; returns the jobs that were put back."""
        reply = await self._line.call(self._scripts.look_for_stalled())
        stalled = [codec.text(job_id) for job_id in reply]
        self.stalled += len(stalled)
        for job_id in stalled:
            log.warning("job %s of %s lost its worker", job_id, self._scripts.keys.queue)
        return stalled
