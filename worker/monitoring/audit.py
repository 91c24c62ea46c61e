"""Audits all jobs now and then; of all workers, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError, WatchError

from common.aio import cancel
from common.contracts.jobs import JobKeys
from common.errors import SluiceError
from common.observability import logs
from common.redis.connection import TRANSIENT_ERRORS
from common.text import plural
from worker.queue.consumers import QueueConsumers

if TYPE_CHECKING:
    from common.jobs.audit.auditor import Auditor, PartitionedAuditor
    from common.jobs.audit.report import AuditReport

log = logging.getLogger(__name__)

#: Seconds after which an auditor that died no longer keeps others from auditing.
LOCK_TTL_S = 60
#: Share of that after which it is renewed.
RENEW_AFTER = 1 / 3
#: Not all workers come at the same time: each waits up to a fifth longer.
JITTER = 0.2
#: Share of the time between audits after which the next one may begin.
DUE_AFTER = 0.9

_REDIS_ERRORS = (RedisError, SluiceError, *TRANSIENT_ERRORS)


class AuditRunner(Protocol):
    """Whoever can look at all jobs."""

    async def run(self) -> AuditReport:
        """Look at them all, once."""


class LazyAuditor:
    """Made by its first audit: of all workers one at a time does it, and most never do."""

    def __init__(self, consumers: QueueConsumers) -> None:
        self._consumers = consumers

    async def run(self) -> AuditReport:
        """Look at all jobs of all queues."""

        return await build_worker_auditor(self._consumers).run()


class PeriodicAudit:
    """Every worker wants to audit every so often; whoever comes first does it for all."""

    def __init__(
        self,
        auditor: AuditRunner,
        client: Redis,
        keys: JobKeys,
        every_s: float,
        lock_ttl_s: int = LOCK_TTL_S,
    ) -> None:
        self._auditor = auditor
        self._client = client
        self._keys = keys
        self._every_s = every_s
        self._lock_ttl_s = lock_ttl_s
        self._token = uuid.uuid4().hex.encode()

    async def run(self) -> None:
        """Audit until canceled; never, where the time between audits is 0."""
        while self._every_s > 0:
            await asyncio.sleep(self._every_s * random.uniform(1.0, 1.0 + JITTER))
            # In a task of its own, so that being canceled is never mistaken for something else.
            audit = asyncio.create_task(self.run_once())
            try:
                await asyncio.wait({audit})
            finally:
                await cancel(audit)

    async def run_once(self) -> AuditReport | None:
        """Audit, unless somebody else does or just did; trouble is left to the next round."""
        try:
            async with self._exclusive() as ours:
                if ours and await self._is_due():
                    from common.jobs.audit.report import store_report

                    report = await self._auditor.run()
                    _log_report(report)
                    await store_report(self._client, self._keys, report)
                    return report
        except _REDIS_ERRORS as error:
            log.warning("audit is left to the next round: %s", error)
        except Exception:
            log.exception("audit is left to the next round after an unexpected fault")
        return None

    async def _is_due(self) -> bool:
        from common.jobs.audit.report import load_record

        last_ts = (await load_record(self._client, self._keys)).last_ts
        seconds, micros = await self._client.time()
        age_s = seconds + micros / 1e6 - last_ts / 1000
        # One that lies ahead was stored by a clock that went wrong.
        return not 0 <= age_s < self._every_s * DUE_AFTER

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[bool]:
        """Be the only auditor for a while, if nobody else is."""
        key = self._keys.audit_lock
        if not await self._client.set(key, self._token, nx=True, ex=self._lock_ttl_s):
            yield False
            return
        keeping = asyncio.create_task(self._renew_lock())
        try:
            yield True
        finally:
            await cancel(keeping)
            with contextlib.suppress(*_REDIS_ERRORS):  # then it runs out by itself
                await self._if_lock_held(lambda pipe: pipe.delete(key))

    async def _renew_lock(self) -> None:
        while True:
            await asyncio.sleep(self._lock_ttl_s * RENEW_AFTER)
            with contextlib.suppress(*_REDIS_ERRORS):
                await self._if_lock_held(
                    lambda pipe: pipe.expire(self._keys.audit_lock, self._lock_ttl_s)
                )

    async def _if_lock_held(self, queue_command: Callable[[Pipeline], object]) -> None:
        """Change the key, but not once it is somebody else's."""
        async with self._client.pipeline() as pipe:
            await pipe.watch(self._keys.audit_lock)
            if await pipe.get(self._keys.audit_lock) == self._token:
                pipe.multi()  # type: ignore[no-untyped-call]
                queue_command(pipe)
                with contextlib.suppress(WatchError):
                    await pipe.execute()


def _log_report(report: AuditReport) -> None:
    for violation in report.violations:
        about = logs.job_extra(violation.job_id)
        rule, detail = violation.rule.value, violation.detail
        log.error("job %s: %s: %s", violation.job_id, rule, detail, extra=about)
    unnamed = report.violations_total - len(report.violations)
    if unnamed:
        log.error("%s not named", plural(unnamed, "more violation is", "more violations are"))
    if not report.complete:
        log.warning("the queue is too long to be audited whole")
    log.info(
        "audited %s in %d ms: %s",
        plural(report.jobs_checked, "job"),
        report.duration_ms,
        plural(report.violations_total, "violation"),
    )


#: An audit beside the jobs takes a twentieth of the loop's time, however many jobs there are.
AUDIT_PAUSE_S: Final = 0.1


def build_worker_auditor(consumers: QueueConsumers) -> Auditor | PartitionedAuditor:
    # Most workers never audit: an idle worker does without this module.
    from common.jobs.audit.auditor import Auditor, AuditPace, PartitionedAuditor

    pace = AuditPace(pause_s=AUDIT_PAUSE_S)
    auditors = [
        Auditor(consumer.connections.client, consumer.keys, consumers.worker.group, pace)
        for consumer in consumers
        if not consumer.keys.lane  # the normal one's looks at all lanes
    ]
    return PartitionedAuditor(auditors) if len(auditors) > 1 else auditors[0]
