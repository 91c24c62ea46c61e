"""`sluice audit --local`: an audit straight on Redis, for where the gateway may not read the queue.

Says the same as `POST /v1/audit`, line by line.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from common.audit_partitions import auditor_over
from common.audit_report import AuditReport, Violation, store_report
from common.cancellation import cancel
from common.errors import NoRedisServer, SluiceError
from common.partition_lines import Lines
from common.redis_urls import URL_FORM
from common.settings import WorkerSettings, load
from ops import redis_target

#: A line comes at least this often.
LINE_EVERY_S = 1.0
CONNECTIONS = 4

Line = dict[str, Any]


class NoLocalAudit(Exception):
    """The audit did not come to its end; the message says why and what to do."""

    def __init__(self, error: SluiceError) -> None:
        super().__init__(str(error))
        self.code = error.exit_code


def lines(redis: str | None, warn: Callable[[str], None]) -> Iterator[Line]:
    """What the audit says; `warn` hears of what does not spoil it. Raises NoLocalAudit."""
    loop = asyncio.new_event_loop()
    audit = task = None
    try:
        audit = _Audit(redis)
        task = loop.create_task(audit.run())
        while not task.done():
            loop.run_until_complete(asyncio.wait({task}, timeout=LINE_EVERY_S))
            if audit.jobs_checked is not None:
                yield {"type": "progress", "jobs_checked": audit.jobs_checked}
            yield from audit.take_found()
        report = task.result()
        if audit.not_stored:
            warn(f"the result could not be kept in Redis: {audit.not_stored}")
        yield {"type": "report", **_numbers(report)}
    except SluiceError as error:
        raise NoLocalAudit(error) from None
    finally:
        if task is not None:
            loop.run_until_complete(cancel(task))
        if audit is not None:
            loop.run_until_complete(audit.close())
        loop.close()


def _numbers(report: AuditReport) -> Line:
    """A report without its violations, each of which has a line of its own."""
    names = (field.name for field in fields(report))
    return {name: getattr(report, name) for name in names if name != "violations"}


class _Audit:
    """One audit, and what it has to say."""

    def __init__(self, redis: str | None) -> None:
        settings = load(WorkerSettings)
        target = redis_target.find(redis, os.environ)
        if target is None:
            raise NoRedisServer(
                "no Redis is named and no private one runs here; set --redis or REDIS_URL, or run "
                "this with sudo on an installed box"
            )
        self._partitions = settings.partitions
        self._group = settings.worker_group
        self._target = target
        self._lines: Lines | None = None
        self._found: list[Violation] = []
        #: None until Redis has answered.
        self.jobs_checked: int | None = None
        #: Why the result was not stored.
        self.not_stored = ""

    async def run(self) -> AuditReport:
        """Audit, and keep the result as a worker would."""
        try:
            self._lines = Lines.over(self._partitions, self._target.url, connections=CONNECTIONS)
        except ValueError:  # its words may quote the password
            raise NoRedisServer(f"{self._target.shown} is no URL of Redis; {URL_FORM}") from None
        auditor = auditor_over(self._lines, self._group)
        report = await auditor.run(self._progress, self._found.append)
        try:
            await store_report(self._lines.home.client, self._lines.home.keys, report)
        except SluiceError as error:
            self.not_stored = str(error)
        return report

    def _progress(self, jobs_checked: int) -> None:
        self.jobs_checked = jobs_checked

    def take_found(self) -> Iterator[Line]:
        """Violations that nobody was told of yet."""
        found, self._found[:] = list(self._found), []
        yield from ({"type": "violation", **violation.view()} for violation in found)

    async def close(self) -> None:
        """Let go of Redis."""
        if self._lines is not None:
            await self._lines.aclose()
