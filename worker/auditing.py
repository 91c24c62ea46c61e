"""Audits all jobs now and then; of all workers, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError, WatchError

from common import logs
from common.cancellation import cancel
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import JobKeys
from common.errors import SluiceError

if TYPE_CHECKING:
    from common.audit_report import AuditReport
    from worker.crews import Crews

log = logging.getLogger(__name__)

#: Seconds after which an auditor that died no longer keeps others from auditing.
HOLD_S = 60
#: Share of that after which it is renewed.
RENEW_AFTER = 1 / 3
#: Not all workers come at the same time: each waits up to a fifth longer.
SPREAD = 0.2
#: Share of the time between audits after which the next one may begin.
DUE = 0.9

_TROUBLE = (RedisError, SluiceError, *TRANSIENT_ERRORS)


class Audits(Protocol):
    """Whoever can look at all jobs."""

    async def run(self) -> AuditReport:
        """Look at them all, once."""


class LateAuditor:
    """Made by its first audit: of all workers one at a time does it, and most never do."""

    def __init__(self, crews: Crews) -> None:
        self._crews = crews

    async def run(self) -> AuditReport:
        """Look at all jobs of all queues."""
        from worker.auditors import auditor_of

        return await auditor_of(self._crews).run()


class Auditing:
    """Every worker wants to audit every so often; whoever comes first does it for all."""

    def __init__(
        self,
        auditor: Audits,
        client: Redis,
        keys: JobKeys,
        every_s: float,
        hold_s: int = HOLD_S,
    ) -> None:
        self._auditor = auditor
        self._client = client
        self._keys = keys
        self._every_s = every_s
        self._hold_s = hold_s
        self._token = uuid.uuid4().hex.encode()

    async def run(self) -> None:
        """Audit until canceled; never, where the time between audits is 0."""
        while self._every_s > 0:
            await asyncio.sleep(self._every_s * random.uniform(1.0, 1.0 + SPREAD))
            # In a task of its own, so that being canceled is never mistaken for something else.
            audit = asyncio.create_task(self.run_once())
            try:
                await asyncio.wait({audit})
            finally:
                await cancel(audit)

    async def run_once(self) -> AuditReport | None:
        """Audit, unless somebody else does or just did; trouble is left to the next round."""
        try:
            async with self._turn() as ours:
                if ours and await self._is_due():
                    from common.audit_report import store_report

                    report = await self._auditor.run()
                    _tell(report)
                    await store_report(self._client, self._keys, report)
                    return report
        except _TROUBLE as error:
            log.warning("audit is left to the next round: %s", error)
        except Exception:
            log.exception("audit is left to the next round after an unexpected fault")
        return None

    async def _is_due(self) -> bool:
        from common.audit_report import load_record

        last_ts = (await load_record(self._client, self._keys)).last_ts
        seconds, micros = await self._client.time()
        age_s = seconds + micros / 1e6 - last_ts / 1000
        # One that lies ahead was stored by a clock that went wrong.
        return not 0 <= age_s < self._every_s * DUE

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[bool]:
        """Be the only auditor for a while, if nobody else is."""
        key = self._keys.auditor
        if not await self._client.set(key, self._token, nx=True, ex=self._hold_s):
            yield False
            return
        keeping = asyncio.create_task(self._keep_turn())
        try:
            yield True
        finally:
            await cancel(keeping)
            with contextlib.suppress(*_TROUBLE):  # then it runs out by itself
                await self._if_ours(lambda pipe: pipe.delete(key))

    async def _keep_turn(self) -> None:
        while True:
            await asyncio.sleep(self._hold_s * RENEW_AFTER)
            with contextlib.suppress(*_TROUBLE):
                await self._if_ours(lambda pipe: pipe.expire(self._keys.auditor, self._hold_s))

    async def _if_ours(self, queue_command: Callable[[Pipeline], object]) -> None:
        """Change the key, but not once it is somebody else's."""
        async with self._client.pipeline() as pipe:
            await pipe.watch(self._keys.auditor)
            if await pipe.get(self._keys.auditor) == self._token:
                pipe.multi()  # type: ignore[no-untyped-call]
                queue_command(pipe)
                with contextlib.suppress(WatchError):
                    await pipe.execute()


def _tell(report: AuditReport) -> None:
    for violation in report.violations:
        about = logs.about(violation.job_id)
        rule, detail = violation.rule.value, violation.detail
        log.error("job %s: %s: %s", violation.job_id, rule, detail, extra=about)
    unnamed = report.violations_total - len(report.violations)
    if unnamed:
        log.error("%d more violations are not named", unnamed)
    if not report.complete:
        log.warning("the queue is too long to be audited whole")
    log.info(
        "audited %d jobs in %d ms: %d violations",
        report.jobs_checked,
        report.duration_ms,
        report.violations_total,
    )
