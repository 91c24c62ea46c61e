"""Renews the locks of running BullMQ jobs, and returns stalled jobs to the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from common import codec
from common.jobs.store import Lease
from common.redis.connection import TRANSIENT_ERRORS
from common.redis.scripts import run_packed_blocking
from worker.bullmq.script_client import ScriptClient
from worker.bullmq.scripts import QueueScripts
from worker.execution.leases import Renewal

log = logging.getLogger(__name__)

#: Seconds after which a failed renewal is retried.
RETRY_S: Final = 0.5
#: Locks renewed by one call of the script.
MOST_PER_CALL: Final = 1000
#: By whether a cancel of the job was requested.
_RENEWED: Final = {False: Renewal.RENEWED, True: Renewal.CANCELING}


class LockRenewer:
    """Renews locks of one queue, and reads in the same round which jobs are to be canceled."""

    noun: Final = "lock"
    #: A job's token is not unique: the job that its end fetches is locked with the same one.
    key: Final = attrgetter("job_id")
    batch_size: Final = MOST_PER_CALL

    def __init__(self, client: redis.Redis, scripts: QueueScripts) -> None:
        self._client = client
        self._scripts = scripts

    def renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        ids = [lease.job_id for lease in leases]
        script, args = self._scripts.renew(ids, [lease.token for lease in leases])
        gone = run_packed_blocking(self._client, script, args)
        lost = {codec.decode_text(job_id) for job_id in gone}
        cancel_keys = (self._scripts.keys.cancel(job_id) for job_id in ids)
        cancels: list[Any] = self._client.execute_command(  # type: ignore[no-untyped-call]
            "MGET", *cancel_keys
        )
        return [
            Renewal.LOST if job_id in lost else _RENEWED[bool(cancel)]
            for job_id, cancel in zip(ids, cancels)
        ]

    def close(self) -> None:
        self._client.close()


class StallChecker:
    """Looks at a queue's active jobs in every interval; one look does for all workers.

    A job is marked by the first look and put back by the second, unless its lock was renewed
    between them. The first look comes at once, so that a restarted worker loses no interval.
    """

    def __init__(self, client: ScriptClient, scripts: QueueScripts, interval_ms: int) -> None:
        self._client = client
        self._scripts = scripts
        self._interval_s = interval_ms / 1000
        #: Jobs that were put back by our looks.
        self.stalled = 0

    async def run(self) -> None:
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
        reply = await self._client.call(self._scripts.check_stalled())
        stalled = [codec.decode_text(job_id) for job_id in reply]
        self.stalled += len(stalled)
        for job_id in stalled:
            log.warning("job %s of %s lost its worker", job_id, self._scripts.keys.queue)
        return stalled
