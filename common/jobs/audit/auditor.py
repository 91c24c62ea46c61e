"""The auditor: an integrity check that scans all jobs and reports violated guarantees.

It only reads, in small batches. Jobs change between its reads, so each suspected violation is
checked again with a fresh reading of the queue. It is reported only if it persists and the job has
not changed in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from sluice.common import codec
from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import SluiceError, StoreUnavailable
from sluice.common.jobs.audit import readers
from sluice.common.jobs.audit.readers import JobCheck, JobReader, QueueSnapshot
from sluice.common.jobs.audit.report import AuditReport, Violation
from sluice.common.jobs.audit.rules import Rule
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.redis.connection import TRANSIENT_ERRORS

#: Jobs read in one round trip; processing them keeps the event loop busy for a few milliseconds.
BATCH = 25
#: Keys scanned per SCAN; only some of them are jobs.
SCAN_KEYS = 500
#: Violations listed in the report; all are counted.
MOST_NAMED = 1000
#: Suspected jobs collected before they are checked again.
MOST_SUSPECTS = 500
#: Rechecks of a suspected job that keeps changing, before it is left to the next audit.
MAX_RECHECKS = 3
#: Seconds after which the queue is read again.
QUEUE_FRESH_S = 30.0


class AuditRunning(SluiceError):
    """This auditor is already running."""

    def __init__(self) -> None:
        super().__init__("an audit is running already")


class AuditNotPermitted(SluiceError):
    """Redis denies the user permissions that an audit needs."""


@dataclass(frozen=True, slots=True)
class AuditPace:
    """Pauses and delays of an audit."""

    #: A job that changed within this many seconds is not checked for an owner.
    grace_s: float = 60.0
    #: Seconds between two batches or pages.
    pause_s: float = 0.005
    #: Seconds before a suspected violation is checked again.
    recheck_delay_s: float = 1.0


OnProgress = Callable[[int], None]
OnViolation = Callable[[Violation], None]


class Auditor:
    """Audits all jobs of one queue and group; one audit at a time."""

    def __init__(
        self, client: Redis, keys: JobKeys, group: str, pace: AuditPace | None = None
    ) -> None:
        self.client = client
        self.keys = keys
        self._group = group
        self._pace = pace or AuditPace()
        self.running = False

    async def run(
        self,
        on_progress: OnProgress = lambda jobs_checked: None,
        on_violation: OnViolation = lambda violation: None,
    ) -> AuditReport:
        """Run one audit. `on_progress` gets the number of jobs checked so far, first 0 as soon as
        Redis has answered; `on_violation` gets each violation that the report lists."""
        with self.exclusive_run():
            audit = self.start(on_violation)
            await audit.begin()
            on_progress(0)
            pause_s = self.pace.pause_s
            async for names in scan_hashes(self.client, self.keys.job("*"), pause_s):
                for job_ids in job_id_batches(names, self.keys):
                    await audit.check(job_ids)
                    on_progress(audit.checked)
                    await asyncio.sleep(pause_s)
            return await audit.end()

    def start(self, on_violation: OnViolation) -> Audit:
        return Audit(self.client, self.keys, self._group, self._pace, on_violation)

    @property
    def pace(self) -> AuditPace:
        return self._pace

    @contextmanager
    def exclusive_run(self) -> Iterator[None]:
        """Allow one audit at a time; errors of Redis are raised as SluiceError."""
        if self.running:
            raise AuditRunning
        self.running = True
        try:
            yield
        except NoPermissionError as error:
            raise AuditNotPermitted(str(error)) from error
        except (RedisError, *TRANSIENT_ERRORS) as error:
            raise StoreUnavailable(str(error)) from error
        finally:
            self.running = False


class Audit:
    """One audit in progress: `begin`, `check` for all jobs, `end`."""

    def __init__(
        self,
        client: Redis,
        keys: JobKeys,
        group: str,
        pace: AuditPace,
        on_violation: OnViolation,
    ) -> None:
        self._client = client
        self._keys = keys
        self._group = group
        self._pace = pace
        self._on_violation = on_violation
        self._reader = JobReader(client, keys, round(pace.grace_s * 1000), pace.pause_s)
        self._queue = QueueSnapshot({})
        self._queue_read = 0.0
        self._suspects: dict[str, JobCheck] = {}
        self._named: dict[tuple[str, Rule], Violation] = {}
        self._total = 0
        #: Number of jobs checked so far.
        self.checked = 0
        self._complete = True
        self._started = time.monotonic()
        self._ts = 0

    async def begin(self) -> None:
        """Check the permissions, and note the time."""
        self._started = time.monotonic()
        seconds, micros = await self._client.time()
        self._ts = seconds * 1000 + micros // 1000
        await self._check_permissions()

    async def check(self, job_ids: Sequence[str]) -> None:
        if not self._queue_read or time.monotonic() - self._queue_read > QUEUE_FRESH_S:
            await self._read_queue()
        looks = await self._reader.check(job_ids, self._queue)
        self._suspects.update((job_id, look) for job_id, look in looks.items() if look.suspected)
        self.checked += len(looks)
        if len(self._suspects) >= MOST_SUSPECTS:
            await self._recheck_suspects()

    async def end(self) -> AuditReport:
        """Check the remaining suspected violations again, and return the report."""
        if not self._queue_read:
            await self._read_queue()
        await self._recheck_suspects()
        return AuditReport(
            ts=self._ts,
            jobs_checked=self.checked,
            duration_ms=round((time.monotonic() - self._started) * 1000),
            violations=tuple(self._named.values()),
            violations_total=self._total,
            complete=self._complete,
        )

    async def _check_permissions(self) -> None:
        """Require all permissions up front: a partial audit would report jobs as lost that are
        not."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.scan(0, count=1)
            pipe.xrange(self._keys.queue, "-", "-", count=1)
            for reply in await pipe.execute(raise_on_error=False):
                if isinstance(reply, NoPermissionError):
                    raise reply

    async def _read_queue(self) -> None:
        self._queue = await readers.read_queue(
            self._client, self._keys, self._group, self._pace.pause_s
        )
        self._queue_read = time.monotonic()
        self._complete = self._complete and self._queue.complete

    async def _recheck_suspects(self) -> None:
        """Separate violations from changes that were in progress."""
        for _ in range(MAX_RECHECKS):
            if not self._suspects:
                return
            await asyncio.sleep(self._pace.recheck_delay_s)
            await self._read_queue()
            suspects, self._suspects = self._suspects, {}
            job_ids = list(suspects)
            for at in range(0, len(job_ids), BATCH):
                looks = await self._reader.check(job_ids[at : at + BATCH], self._queue)
                for job_id, look in looks.items():
                    self._compare(job_id, suspects[job_id], look)
                await asyncio.sleep(self._pace.pause_s)
        self._suspects.clear()

    def _compare(self, job_id: str, before: JobCheck, now: JobCheck) -> None:
        lasting = before.suspected.keys() & now.suspected.keys()
        if now.mark == before.mark and lasting:
            for rule in Rule:
                if rule in lasting:
                    self._report(Violation(job_id, rule, now.suspected[rule].detail))
        elif now.suspected:
            self._suspects[job_id] = now

    def _report(self, violation: Violation) -> None:
        name = violation.job_id, violation.rule
        if name in self._named:
            return  # SCAN returned the job twice
        self._total += 1
        if len(self._named) < MOST_NAMED:
            self._named[name] = violation
            self._on_violation(violation)


async def scan_hashes(client: Redis, pattern: str, pause_s: float) -> AsyncIterator[list[bytes]]:
    """The keys of all hashes on a server, in pages; SCAN may return one twice."""
    cursor = 0
    while True:
        cursor, found = await client.scan(cursor, match=pattern, count=SCAN_KEYS, _type="HASH")
        yield found
        if cursor == 0:
            return
        await asyncio.sleep(pause_s)


def job_id_batches(names: Sequence[bytes], keys: JobKeys) -> Iterator[list[str]]:
    """The ids of the job hashes among these keys, in batches. Other keys are skipped."""
    prefix = keys.job("").encode()
    ids = (codec.decode_text(name[len(prefix) :]) for name in names if name.startswith(prefix))
    job_ids = list(dict.fromkeys(job_id for job_id in ids if codec.JOB_ID_PATTERN.match(job_id)))
    for at in range(0, len(job_ids), BATCH):
        yield job_ids[at : at + BATCH]


class PartitionedAuditor(Auditor):
    """Audits all partitions, with one auditor each, and merges their reports."""

    def __init__(self, auditors: Sequence[Auditor]) -> None:
        self._auditors = tuple(auditors)
        self.running = False

    @property
    def pace(self) -> AuditPace:
        return self._auditors[0].pace

    async def run(
        self,
        on_progress: OnProgress = lambda jobs_checked: None,
        on_violation: OnViolation = lambda violation: None,
    ) -> AuditReport:
        """Run one audit; see `Auditor.run`. If a partition fails, the whole audit fails: a partial
        result would prove nothing."""
        named: list[Violation] = []

        def violation(found: Violation) -> None:
            if len(named) < MOST_NAMED:
                named.append(found)
                on_violation(found)

        with self.exclusive_run():
            audits = [auditor.start(violation) for auditor in self._auditors]
            for audit in audits:
                await audit.begin()
            on_progress(0)
            reports: list[AuditReport] = []
            for numbers in await self._by_server():
                async for number, job_ids in self._jobs(numbers):
                    await audits[number].check(job_ids)
                    on_progress(sum(audit.checked for audit in audits))
                reports += [await audits[number].end() for number in numbers]
            return _merge_reports(reports, named)

    async def _by_server(self) -> list[list[int]]:
        """Partition numbers grouped by server; several clients may lead to the same server."""
        found: dict[object, list[int]] = {}
        for number, auditor in enumerate(self._auditors):
            found.setdefault(await _server(auditor.client), []).append(number)
        return list(found.values())

    async def _jobs(self, numbers: Sequence[int]) -> AsyncIterator[tuple[int, list[str]]]:
        """All jobs of a server, in batches of one partition."""
        first, pause_s = self._auditors[numbers[0]], self.pace.pause_s
        pattern = first.keys.job("*") if len(numbers) == 1 else first.keys.job_pattern
        async for names in scan_hashes(first.client, pattern, pause_s):
            for number in numbers:
                for job_ids in job_id_batches(names, self._auditors[number].keys):
                    yield number, job_ids
                    await asyncio.sleep(pause_s)


async def _server(client: Redis) -> object:
    """The server's run id; the client itself if that is not permitted."""
    try:
        info = await client.info("server")
    except ResponseError:  # INFO is not permitted
        return client
    return info.get("run_id", client)


def _merge_reports(reports: Sequence[AuditReport], named: Sequence[Violation]) -> AuditReport:
    return replace(
        min(reports, key=lambda report: report.ts),
        jobs_checked=sum(report.jobs_checked for report in reports),
        duration_ms=max(report.duration_ms for report in reports),
        violations=tuple(named),
        violations_total=sum(report.violations_total for report in reports),
        complete=all(report.complete for report in reports),
    )


def build_auditor(lines: PartitionClients, group: str, pace: AuditPace | None = None) -> Auditor:
    """An auditor for all partitions."""
    auditors = [Auditor(line.client, line.keys, group, pace) for line in lines]
    return auditors[0] if len(auditors) == 1 else PartitionedAuditor(auditors)
