"""`sluice audit --local`: runs the integrity check of all jobs directly on Redis.

Yields the same lines as `POST /v1/audit`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from sluice.common.aio import cancel
from sluice.common.errors import NoRedisServer, SluiceError
from sluice.common.jobs.audit.auditor import build_auditor
from sluice.common.jobs.audit.report import AuditReport, Violation, store_report
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.redis.addresses import validate_url
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.ops import redis_target

#: Maximum seconds between two lines.
LINE_EVERY_S = 1.0
CONNECTIONS = 4

AuditLine = dict[str, Any]


class LocalAuditError(Exception):
    """The audit could not be completed."""

    def __init__(self, error: SluiceError) -> None:
        super().__init__(str(error))
        self.code = error.exit_code


def audit_lines(redis: str | None, warn: Callable[[str], None]) -> Iterator[AuditLine]:
    """Run the audit and yield its lines; `warn` receives minor problems. Raises LocalAuditError."""
    loop = asyncio.new_event_loop()
    audit = task = None
    try:
        audit = _Audit(redis)
        task = loop.create_task(audit.run())
        while not task.done():
            loop.run_until_complete(asyncio.wait({task}, timeout=LINE_EVERY_S))
            if audit.jobs_checked is not None:
                yield {"type": "progress", "jobs_checked": audit.jobs_checked}
            yield from audit.take_violations()
        report = task.result()
        if audit.store_error:
            warn(f"the result could not be stored in Redis: {audit.store_error}")
        yield {"type": "report", **_report_fields(report)}
    except SluiceError as error:
        raise LocalAuditError(error) from None
    finally:
        if task is not None:
            loop.run_until_complete(cancel(task))
        if audit is not None:
            loop.run_until_complete(audit.close())
        loop.close()


def _report_fields(report: AuditReport) -> AuditLine:
    """A report without its violations, which are separate lines."""
    names = (field.name for field in fields(report))
    return {name: getattr(report, name) for name in names if name != "violations"}


class _Audit:
    """A running audit and the violations found so far."""

    def __init__(self, redis: str | None) -> None:
        settings = load_settings(WorkerSettings)
        target = redis_target.find_target(redis, os.environ)
        if target is None:
            raise NoRedisServer(
                "no Redis is configured and no private one is running here; set --redis or "
                "REDIS_URL, or run this with sudo on an installed host"
            )
        self._partitions = settings.partitions
        self._group = settings.worker_group
        self._target = target
        self._clients: PartitionClients | None = None
        self._found: list[Violation] = []
        #: None until Redis has answered.
        self.jobs_checked: int | None = None
        #: Why the result was not stored.
        self.store_error = ""

    async def run(self) -> AuditReport:
        """Run the audit, and store its report as a worker would."""
        try:
            validate_url(self._target.url)
        except ValueError as error:
            raise NoRedisServer(f"{self._target.masked_url} {error}") from None
        self._clients = PartitionClients.connect(
            self._partitions, self._target.url, connections=CONNECTIONS
        )
        auditor = build_auditor(self._clients, self._group)
        report = await auditor.run(self._progress, self._found.append)
        try:
            await store_report(self._clients.home.client, self._clients.home.keys, report)
        except SluiceError as error:
            self.store_error = str(error)
        return report

    def _progress(self, jobs_checked: int) -> None:
        self.jobs_checked = jobs_checked

    def take_violations(self) -> Iterator[AuditLine]:
        """The lines of violations found since the last call."""
        found, self._found[:] = list(self._found), []
        yield from ({"type": "violation", **violation.view()} for violation in found)

    async def close(self) -> None:
        if self._clients is not None:
            await self._clients.aclose()
