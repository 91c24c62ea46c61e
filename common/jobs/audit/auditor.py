"""The auditor: goes through all jobs and names those of which a promise was broken.

It only reads, a little at a time. Between its reads the world goes on, so whatever looks wrong is
looked at again, with the queue read anew; it is reported only if it still looks wrong and the job
has not changed meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from common import codec
from common.contracts.jobs import JobKeys
from common.errors import SluiceError, StoreUnavailable
from common.jobs.audit import readers
from common.jobs.audit.readers import JobCheck, JobReader, QueueSnapshot
from common.jobs.audit.report import AuditReport, Violation
from common.jobs.audit.rules import Rule
from common.jobs.partition_clients import PartitionClients
from common.redis.connection import TRANSIENT_ERRORS

#: Jobs read in one round trip; the event loop is busy with them for a few milliseconds.
BATCH = 25
#: Keys that one SCAN goes over; some of them are jobs.
SCAN_KEYS = 500
#: Violations that are named; all are counted.
MOST_NAMED = 1000
#: Suspects kept before they are looked at again.
MOST_SUSPECTS = 500
#: How often a suspect that keeps changing is looked at again before it is left to the next audit.
MAX_RECHECKS = 3
#: The queue is read again when it was read longer ago than this.
QUEUE_FRESH_S = 30.0
#: Keys that look like a job's but have another name behind the prefix belong to somebody else.


class AuditRunning(SluiceError):
    """This auditor is at work already."""

    def __init__(self) -> None:
        super().__init__("an audit is running already")


class AuditNotPermitted(SluiceError):
    """Redis does not let us read what an audit must read."""


@dataclass(frozen=True, slots=True)
class AuditPace:
    """How gently an audit goes, and how patient it is."""

    #: A job that changed less than so many seconds ago is not asked who will end it.
    grace_s: float = 60.0
    #: Seconds between two batches or pages.
    pause_s: float = 0.005
    #: Seconds before a suspect is looked at again.
    recheck_delay_s: float = 1.0


OnProgress = Callable[[int], None]
OnViolation = Callable[[Violation], None]


class Auditor:
    """Audits all jobs of one queue and group, one audit at a time."""

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
        """Audit once. `on_progress` gets the number of jobs checked so far, first 0 as soon as
        Redis has answered; `on_violation` each violation that the report will name."""
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
        """One audit at a time; what keeps it from its end is a SluiceError."""
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
    """One audit under way: `begin`, `check` all jobs, `end`."""

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
        #: Jobs so far.
        self.checked = 0
        self._complete = True
        self._started = time.monotonic()
        self._ts = 0

    async def begin(self) -> None:
        """See whether all of it may be looked at."""
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
        """Look once more at what seemed wrong."""
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
        """Half an audit would find jobs lost that are not: all of it is allowed, or none."""
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
        """Tell violations from changes that were just under way."""
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
            return  # the walk came by twice
        self._total += 1
        if len(self._named) < MOST_NAMED:
            self._named[name] = violation
            self._on_violation(violation)


async def scan_hashes(client: Redis, pattern: str, pause_s: float) -> AsyncIterator[list[bytes]]:
    """All hashes of a server by name, some at a time; one may come twice as Redis reorganises."""
    cursor = 0
    while True:
        cursor, found = await client.scan(cursor, match=pattern, count=SCAN_KEYS, _type="HASH")
        yield found
        if cursor == 0:
            return
        await asyncio.sleep(pause_s)


def job_id_batches(names: Sequence[bytes], keys: JobKeys) -> Iterator[list[str]]:
    """The ids of those that are records of jobs, a few at a time."""
    prefix = keys.job("").encode()
    ids = (codec.decode_text(name[len(prefix) :]) for name in names if name.startswith(prefix))
    job_ids = list(dict.fromkeys(job_id for job_id in ids if codec.JOB_ID_PATTERN.match(job_id)))
    for at in range(0, len(job_ids), BATCH):
        yield job_ids[at : at + BATCH]


class PartitionedAuditor(Auditor):
    """Audits with one auditor for each partition, as if they were one."""

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
        """Audit once; see `Auditor.run`. One that cannot be audited fails all: half an audit
        promises nothing."""
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
        """Partitions that share a server, which several clients may lead to."""
        found: dict[object, list[int]] = {}
        for number, auditor in enumerate(self._auditors):
            found.setdefault(await _server(auditor.client), []).append(number)
        return list(found.values())

    async def _jobs(self, numbers: Sequence[int]) -> AsyncIterator[tuple[int, list[str]]]:
        """All jobs of a server, a few of one partition at a time."""
        first, pause_s = self._auditors[numbers[0]], self.pace.pause_s
        pattern = first.keys.job("*") if len(numbers) == 1 else first.keys.job_pattern
        async for names in scan_hashes(first.client, pattern, pause_s):
            for number in numbers:
                for job_ids in job_id_batches(names, self._auditors[number].keys):
                    yield number, job_ids
                    await asyncio.sleep(pause_s)


async def _server(client: Redis) -> object:
    """Which one it is; where that is not told, each client's is its own."""
    try:
        info = await client.info("server")
    except ResponseError:  # we may not ask
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
    """Of all partitions; of a single one, its own."""
    auditors = [Auditor(line.client, line.keys, group, pace) for line in lines]
    return auditors[0] if len(auditors) == 1 else PartitionedAuditor(auditors)
