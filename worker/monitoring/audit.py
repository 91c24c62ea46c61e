"""Runs the integrity check of all jobs periodically, in one worker at a time."""

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

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import SluiceError
from sluice.common.observability import logs
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.text import plural
from sluice.worker.queue.consumers import QueueConsumers

if TYPE_CHECKING:
    from sluice.common.jobs.audit.auditor import Auditor, PartitionedAuditor
    from sluice.common.jobs.audit.report import AuditReport

log = logging.getLogger(__name__)

#: Seconds until the lock of an auditor that died expires.
LOCK_TTL_S = 60
#: Fraction of LOCK_TTL_S after which the lock is renewed.
RENEW_AFTER = 1 / 3
#: Each worker waits up to this fraction longer, so that not all start at the same time.
JITTER = 0.2
#: Fraction of the interval after which the next audit may begin.
DUE_AFTER = 0.9

_REDIS_ERRORS = (RedisError, SluiceError, *TRANSIENT_ERRORS)


class AuditRunner(Protocol):
    """Checks all jobs."""

    async def run(self) -> AuditReport:
        """Check all jobs once."""


class LazyAuditor:
    """Builds the auditor for each audit: only one worker audits, and most never do."""

    def __init__(self, consumers: QueueConsumers) -> None:
        self._consumers = consumers

    async def run(self) -> AuditReport:
        """Check all jobs of all queues."""
        return await build_worker_auditor(self._consumers).run()


class PeriodicAudit:
    """Audits in intervals. The first worker whose interval is over audits for all."""

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
        """Audit until canceled. An interval of 0 disables the audit."""
        while self._every_s > 0:
            await asyncio.sleep(self._every_s * random.uniform(1.0, 1.0 + JITTER))
            # In its own task, so that a cancellation is not mistaken for an error of the audit.
            audit = asyncio.create_task(self.run_once())
            try:
                await asyncio.wait({audit})
            finally:
                await cancel(audit)

    async def run_once(self) -> AuditReport | None:
        """Audit, unless another worker does or just did. An error is logged, not raised."""
        try:
            async with self._exclusive() as acquired:
                if acquired and await self._is_due():
                    from sluice.common.jobs.audit.report import store_report

                    report = await self._auditor.run()
                    _log_report(report)
                    await store_report(self._client, self._keys, report)
                    return report
        except _REDIS_ERRORS as error:
            log.warning("audit failed: %s; retried at the next interval", error)
        except Exception:
            log.exception("audit failed unexpectedly; retried at the next interval")
        return None

    async def _is_due(self) -> bool:
        from sluice.common.jobs.audit.report import load_record

        last_ts = (await load_record(self._client, self._keys)).last_ts
        seconds, micros = await self._client.time()
        age_s = seconds + micros / 1e6 - last_ts / 1000
        # A time in the future was stored with a wrong clock.
        return not 0 <= age_s < self._every_s * DUE_AFTER

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[bool]:
        """Hold the audit lock; yields False if another worker holds it."""
        key = self._keys.audit_lock
        if not await self._client.set(key, self._token, nx=True, ex=self._lock_ttl_s):
            yield False
            return
        renewing = asyncio.create_task(self._renew_lock())
        try:
            yield True
        finally:
            await cancel(renewing)
            with contextlib.suppress(*_REDIS_ERRORS):  # then the lock expires
                await self._if_lock_held(lambda pipe: pipe.delete(key))

    async def _renew_lock(self) -> None:
        while True:
            await asyncio.sleep(self._lock_ttl_s * RENEW_AFTER)
            with contextlib.suppress(*_REDIS_ERRORS):
                await self._if_lock_held(
                    lambda pipe: pipe.expire(self._keys.audit_lock, self._lock_ttl_s)
                )

    async def _if_lock_held(self, queue_command: Callable[[Pipeline], object]) -> None:
        """Run a command on the lock, unless another worker has acquired it."""
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
        log.error("%s not listed", plural(unnamed, "more violation is", "more violations are"))
    if not report.complete:
        log.warning("audit incomplete: the queue is too long")
    log.info(
        "audited %s in %d ms: %s",
        plural(report.jobs_checked, "job"),
        report.duration_ms,
        plural(report.violations_total, "violation"),
    )


#: Seconds between two pages of an audit, which limits it to a twentieth of the loop's time.
AUDIT_PAUSE_S: Final = 0.1


def build_worker_auditor(consumers: QueueConsumers) -> Auditor | PartitionedAuditor:
    # Imported here because most workers never audit.
    from sluice.common.jobs.audit.auditor import Auditor, AuditPace, PartitionedAuditor

    pace = AuditPace(pause_s=AUDIT_PAUSE_S)
    auditors = [
        Auditor(consumer.connections.client, consumer.keys, consumers.worker.group, pace)
        for consumer in consumers
        if not consumer.keys.lane  # the auditor of the normal queue checks all lanes
    ]
    return PartitionedAuditor(auditors) if len(auditors) > 1 else auditors[0]
