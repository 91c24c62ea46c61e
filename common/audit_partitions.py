"""An audit of all partitions, told as one: server by server, and each server is gone through once,
however many partitions it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from common.audit import (
    MOST_NAMED,
    Auditor,
    OnProgress,
    OnViolation,
    Pace,
    batches,
    scan,
)
from common.audit_report import AuditReport, Violation
from common.partition_lines import Lines


class PartitionedAuditor(Auditor):
    """Audits with one auditor for each partition, as if they were one."""

    def __init__(self, auditors: Sequence[Auditor]) -> None:
        self._auditors = tuple(auditors)
        self.running = False

    @property
    def pace(self) -> Pace:
        """How gently it goes."""
        return self._auditors[0].pace

    async def run(
        self,
        on_progress: OnProgress = lambda jobs_checked: None,
        on_violation: OnViolation = lambda violation: None,
    ) -> AuditReport:
        """Audit once; see `Auditor.run`. One that cannot be audited fails all: half an audit
        promises nothing."""
        named: list[Violation] = []

        def violation(found: Violation) -> None:
            if len(named) < MOST_NAMED:
                named.append(found)
                on_violation(found)

        with self.at_work():
            audits = [auditor.audit(violation) for auditor in self._auditors]
            for audit in audits:
                await audit.begin()
            on_progress(0)
            reports: list[AuditReport] = []
            for numbers in await self._by_server():
                async for number, job_ids in self._jobs(numbers):
                    await audits[number].check(job_ids)
                    on_progress(sum(audit.checked for audit in audits))
                reports += [await audits[number].end() for number in numbers]
            return _as_one(reports, named)

    async def _by_server(self) -> list[list[int]]:
        """Partitions that share a server, which several clients may lead to."""
        found: dict[object, list[int]] = {}
        for number, auditor in enumerate(self._auditors):
            found.setdefault(await _server(auditor.client), []).append(number)
        return list(found.values())

    async def _jobs(self, numbers: Sequence[int]) -> AsyncIterator[tuple[int, list[str]]]:
        """All jobs of a server, a few of one partition at a time."""
        first, pause_s = self._auditors[numbers[0]], self.pace.pause_s
        pattern = first.keys.job("*") if len(numbers) == 1 else first.keys.every_job
        async for names in scan(first.client, pattern, pause_s):
            for number in numbers:
                for job_ids in batches(names, self._auditors[number].keys):
                    yield number, job_ids
                    await asyncio.sleep(pause_s)


async def _server(client: Redis) -> object:
    """Which one it is; where that is not told, each client's is its own."""
    try:
        info = await client.info("server")
    except ResponseError:  # we may not ask
        return client
    return info.get("run_id", client)


def _as_one(reports: Sequence[AuditReport], named: Sequence[Violation]) -> AuditReport:
    return replace(
        min(reports, key=lambda report: report.ts),
        jobs_checked=sum(report.jobs_checked for report in reports),
        duration_ms=max(report.duration_ms for report in reports),
        violations=tuple(named),
        violations_total=sum(report.violations_total for report in reports),
        complete=all(report.complete for report in reports),
    )


def auditor_over(lines: Lines, group: str, pace: Pace | None = None) -> Auditor:
    """Of all partitions; of a single one, its own."""
    auditors = [Auditor(line.client, line.keys, group, pace) for line in lines]
    return auditors[0] if len(auditors) == 1 else PartitionedAuditor(auditors)
