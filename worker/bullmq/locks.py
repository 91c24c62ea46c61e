"""Renews the locks of running BullMQ jobs, and returns stalled jobs to the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import redis
from redis.exceptions import RedisError

from sluice.common import codec
from sluice.common.jobs.store import Lease
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.scripts import run_packed_blocking
from sluice.worker.bullmq.script_client import ScriptClient
from sluice.worker.bullmq.scripts import QueueScripts
from sluice.worker.execution.leases import Renewal

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
    batch_size: Final = MOST_PER_CALL

    def __init__(self, client: redis.Redis, scripts: QueueScripts) -> None:
        self._client = client
        self._scripts = scripts

    def key(self, lease: Lease) -> str:
        # Not the token: the end of a job locks the next one with the same token.
        return lease.job_id

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
    """Checks the active jobs of a queue in intervals; one check per interval for all workers.

    The first check marks a job, the next one returns it to the queue unless its lock was renewed in
    between. The first check runs at once, so that a restarted worker does not lose an interval.
    """

    def __init__(self, client: ScriptClient, scripts: QueueScripts, interval_ms: int) -> None:
        self._client = client
        self._scripts = scripts
        self._interval_s = interval_ms / 1000
        #: Jobs that the checks of this worker have returned to the queue.
        self.stalled = 0

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except (RedisError, *TRANSIENT_ERRORS) as error:
                log.warning("redis: %s; stalled jobs are checked later", error)
            except Exception:
                log.exception("check of stalled jobs failed unexpectedly")
            await asyncio.sleep(self._interval_s)

    async def run_once(self) -> list[str]:
        """Check once; returns the ids of the jobs that were returned to the queue."""
        reply = await self._client.call(self._scripts.check_stalled())
        stalled = [codec.decode_text(job_id) for job_id in reply]
        self.stalled += len(stalled)
        for job_id in stalled:
            log.warning("job %s of %s stalled", job_id, self._scripts.keys.queue)
        return stalled
