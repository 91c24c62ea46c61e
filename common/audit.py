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
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from common import audit_queue, codec
from common.audit_jobs import JobReader, Look
from common.audit_queue import QueueFacts
from common.audit_report import AuditReport, Violation
from common.audit_rules import Rule
from common.connection import TRANSIENT_ERRORS
from common.contracts.jobs import JobKeys
from common.errors import SluiceError, StoreUnavailable

#: Jobs read in one round trip; the event loop is busy with them for a few milliseconds.
BATCH = 25
#: Keys that one SCAN goes over; some of them are jobs.
SCAN_KEYS = 500
#: Violations that are named; all are counted.
MOST_NAMED = 1000
#: Suspects kept before they are looked at again.
MOST_SUSPECTS = 500
#: How often a suspect that keeps changing is looked at again before it is left to the next audit.
MORE_LOOKS = 3
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
class Pace:
    """How gently an audit goes, and how patient it is."""

    #: A job that changed less than so many seconds ago is not asked who will end it.
    grace_s: float = 60.0
    #: Seconds between two batches or pages.
    pause_s: float = 0.005
    #: Seconds before a suspect is looked at again.
    again_s: float = 1.0


OnProgress = Callable[[int], None]
OnViolation = Callable[[Violation], None]


class Auditor:
    """Audits all jobs of one queue and group, one audit at a time."""

    def __init__(self, client: Redis, keys: JobKeys, group: str, pace: Pace | None = None) -> None:
        self.client = client
        self.keys = keys
        self._group = group
        self._pace = pace or Pace()
        self.running = False

    async def run(
        self,
        on_progress: OnProgress = lambda jobs_checked: None,
        on_violation: OnViolation = lambda violation: None,
    ) -> AuditReport:
        """Audit once. `on_progress` gets the number of jobs checked so far, first 0 as soon as
        Redis has answered; `on_violation` each violation that the report will name."""
        with self.at_work():
            audit = self.audit(on_violation)
            await audit.begin()
            on_progress(0)
            pause_s = self.pace.pause_s
            async for names in scan(self.client, self.keys.job("*"), pause_s):
                for job_ids in batches(names, self.keys):
                    await audit.check(job_ids)
                    on_progress(audit.checked)
                    await asyncio.sleep(pause_s)
            return await audit.end()

    def audit(self, on_violation: OnViolation) -> Audit:
        """One audit, step by step."""
        return Audit(self.client, self.keys, self._group, self._pace, on_violation)

    @property
    def pace(self) -> Pace:
        """How gently it goes."""
        return self._pace

    @contextmanager
    def at_work(self) -> Iterator[None]:
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
        pace: Pace,
        on_violation: OnViolation,
    ) -> None:
        self._client = client
        self._keys = keys
        self._group = group
        self._pace = pace
        self._on_violation = on_violation
        self._reader = JobReader(client, keys, round(pace.grace_s * 1000), pace.pause_s)
        self._queue = QueueFacts({})
        self._queue_read = 0.0
        self._suspects: dict[str, Look] = {}
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
        await self._may_look()

    async def check(self, job_ids: Sequence[str]) -> None:
        """Look at some jobs."""
        if not self._queue_read or time.monotonic() - self._queue_read > QUEUE_FRESH_S:
            await self._read_queue()
        looks = await self._reader.look(job_ids, self._queue)
        self._suspects.update((job_id, look) for job_id, look in looks.items() if look.suspicions)
        self.checked += len(looks)
        if len(self._suspects) >= MOST_SUSPECTS:
            await self._look_again()

    async def end(self) -> AuditReport:
        """Look once more at what seemed wrong."""
        if not self._queue_read:
            await self._read_queue()
        await self._look_again()
        return AuditReport(
            ts=self._ts,
            jobs_checked=self.checked,
            duration_ms=round((time.monotonic() - self._started) * 1000),
            violations=tuple(self._named.values()),
            violations_total=self._total,
            complete=self._complete,
        )

    async def _may_look(self) -> None:
        """Half an audit would find jobs lost that are not: all of it is allowed, or none."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.scan(0, count=1)
            pipe.xrange(self._keys.queue, "-", "-", count=1)
            for reply in await pipe.execute(raise_on_error=False):
                if isinstance(reply, NoPermissionError):
                    raise reply

    async def _read_queue(self) -> None:
        self._queue = await audit_queue.collect(
            self._client, self._keys, self._group, self._pace.pause_s
        )
        self._queue_read = time.monotonic()
        self._complete = self._complete and self._queue.complete

    async def _look_again(self) -> None:
        """Tell violations from changes that were just under way."""
        for _ in range(MORE_LOOKS):
            if not self._suspects:
                return
            await asyncio.sleep(self._pace.again_s)
            await self._read_queue()
            suspects, self._suspects = self._suspects, {}
            job_ids = list(suspects)
            for at in range(0, len(job_ids), BATCH):
                looks = await self._reader.look(job_ids[at : at + BATCH], self._queue)
                for job_id, look in looks.items():
                    self._compare(job_id, suspects[job_id], look)
                await asyncio.sleep(self._pace.pause_s)
        self._suspects.clear()

    def _compare(self, job_id: str, before: Look, now: Look) -> None:
        lasting = before.suspicions.keys() & now.suspicions.keys()
        if now.mark == before.mark and lasting:
            for rule in Rule:
                if rule in lasting:
                    self._report(Violation(job_id, rule, now.suspicions[rule].detail))
        elif now.suspicions:
            self._suspects[job_id] = now

    def _report(self, violation: Violation) -> None:
        name = violation.job_id, violation.rule
        if name in self._named:
            return  # the walk came by twice
        self._total += 1
        if len(self._named) < MOST_NAMED:
            self._named[name] = violation
            self._on_violation(violation)


async def scan(client: Redis, pattern: str, pause_s: float) -> AsyncIterator[list[bytes]]:
    """All hashes of a server by name, some at a time; one may come twice as Redis reorganises."""
    cursor = 0
    while True:
        cursor, found = await client.scan(cursor, match=pattern, count=SCAN_KEYS, _type="HASH")
        yield found
        if cursor == 0:
            return
        await asyncio.sleep(pause_s)


def batches(names: Sequence[bytes], keys: JobKeys) -> Iterator[list[str]]:
    """The ids of those that are records of jobs, a few at a time."""
    prefix = keys.job("").encode()
    ids = (codec.text(name[len(prefix) :]) for name in names if name.startswith(prefix))
    job_ids = list(dict.fromkeys(job_id for job_id in ids if codec.JOB_ID.match(job_id)))
    for at in range(0, len(job_ids), BATCH):
        yield job_ids[at : at + BATCH]
