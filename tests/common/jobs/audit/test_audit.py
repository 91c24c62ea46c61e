"""The auditor reports every violated guarantee, and never a healthy job."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from sluice.common.aio import cancel
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.audit import auditor as audit
from sluice.common.jobs.audit import readers
from sluice.common.jobs.audit.auditor import Auditor, AuditPace, AuditRunning
from sluice.common.jobs.audit.report import (
    AUDIT_FIELDS,
    AuditRecord,
    AuditReport,
    Violation,
    load_record,
    store_report,
)
from sluice.common.jobs.audit.rules import Rule
from sluice.common.jobs.store import Lease
from sluice.common.redis.connection import async_client
from tests.support.store.jobs import FAILED, StoreHarness, note


def auditor_of(harness: StoreHarness, **pace: float) -> Auditor:
    chosen = {"grace_s": 0.0, "pause_s": 0.0, "recheck_delay_s": 0.01, **pace}
    return Auditor(harness.client, harness.keys, harness.worker.group, AuditPace(**chosen))


async def audited(harness: StoreHarness, **pace: float) -> AuditReport:
    return await auditor_of(harness, **pace).run()


async def rules(harness: StoreHarness, **pace: float) -> dict[str, set[Rule]]:
    """The violations that an audit finds, by job."""
    found: dict[str, set[Rule]] = {}
    report = await audited(harness, **pace)
    for violation in report.violations:
        assert violation.detail
        found.setdefault(violation.job_id, set()).add(violation.rule)
    assert report.violations_total == len(report.violations)
    return found


async def done(harness: StoreHarness, **job: Any) -> str:
    lease = await harness.running(token=uuid.uuid4().hex, **job)
    await harness.finish(lease)
    return lease.job_id


async def event(harness: StoreHarness, job_id: str, kind: str) -> None:
    fields: Any = {"type": kind, "ts": "1", "step": "by.hand", "data": "{}"}
    await harness.client.xadd(harness.keys.events(job_id), fields)


async def hset(harness: StoreHarness, job_id: str, /, **fields: str) -> None:
    await harness.client.hset(harness.keys.job(job_id), mapping=fields)


async def ack(harness: StoreHarness, message_id: str) -> None:
    await harness.client.xack(harness.keys.queue, harness.worker.group, message_id)


async def test_healthy_jobs_in_every_state(harness: StoreHarness) -> None:
    await done(harness)
    await harness.finish(await harness.running(token="failed"), FAILED)
    await harness.running(token="running")
    await harness.retry(await harness.running(token="retried"), 60_000)
    await harness.release(await harness.running(token="released"))
    await harness.cancel((await harness.running(token="canceling")).job_id)
    await harness.expire(await harness.running(token="silent"))
    await harness.post()
    await harness.post(max_attempts=3)
    await harness.post(delay_ms=60_000, schedule_limit=10)
    for changes in ({}, {"delay_ms": 60_000, "schedule_limit": 10}):
        [job_id] = await harness.post(**changes)
        await harness.cancel(job_id)
    expired = await harness.post(ttl_s=60)
    await harness.client.delete(harness.keys.job(expired[0]), harness.keys.events(expired[0]))
    assert await rules(harness) == {}
    assert (await audited(harness)).jobs_checked == 12


async def test_without_a_group_all_messages_are_waiting(harness: StoreHarness) -> None:
    report = await audited(harness)
    assert (report.jobs_checked, report.violations, report.violations_total) == (0, (), 0)
    assert report.complete
    assert abs(report.ts - await harness.now_ms()) < 60_000
    await harness.post(3)
    assert await rules(harness) == {}


async def test_a_third_party_worker_without_leases(harness: StoreHarness) -> None:
    await harness.group()
    [job_id] = await harness.post()
    [message_id] = await harness.take(consumer="foreign")
    await hset(harness, job_id, status="running")
    await event(harness, job_id, "running")
    assert await rules(harness) == {}
    await hset(harness, job_id, status="done")
    # Its end is half written; if it died here, the next worker would add the event.
    await harness.client.hset(harness.keys.job(job_id), "updated_ts", await harness.now_ms())
    assert await rules(harness, grace_s=60.0) == {}
    assert await rules(harness) == {job_id: {Rule.NO_TERMINAL_EVENT}}
    await event(harness, job_id, "done")
    await ack(harness, message_id)
    assert await rules(harness) == {}


async def test_the_audit_writes_nothing(harness: StoreHarness) -> None:
    await done(harness)
    [lost] = await harness.post()
    await harness.client.delete(harness.keys.queue)
    await harness.client.persist(harness.keys.job(lost))
    async with harness.unchanged():
        assert (await audited(harness)).violations_total == 2


# -- each violation, by hand ---------------------------------------------------------------

Breaker = Callable[[StoreHarness, str], Awaitable[Any]]


async def _last_event_deleted(harness: StoreHarness, job_id: str) -> None:
    [*_, (last, _)] = await harness.client.xrange(harness.keys.events(job_id))
    await harness.client.xdel(harness.keys.events(job_id), last)


async def _field_renamed(harness: StoreHarness, job_id: str) -> None:
    await harness.client.hdel(harness.keys.job(job_id), "payload")
    await hset(harness, job_id, Payload="{}")


async def _queued_twice(harness: StoreHarness, job_id: str) -> None:
    for _ in range(2):
        await harness.client.xadd(harness.keys.queue, {"job_id": job_id, "task": "chat"})


MANY = {f"extra{number}": "" for number in range(1000)}
NO_UTF8 = {b"status": b"\xff\xfe", b"updated_ts": b"\xff", b"\xff": b"\xff"}
SEVERAL, DIFFERS = Rule.SEVERAL_TERMINAL_EVENTS, Rule.TERMINAL_EVENT_DIFFERS
OF_DONE: dict[str, tuple[Breaker, set[Rule]]] = {
    "last event deleted": (_last_event_deleted, {Rule.NO_TERMINAL_EVENT}),
    "no events": (lambda h, j: h.client.delete(h.keys.events(j)), {Rule.NO_TERMINAL_EVENT}),
    "done twice": (lambda h, j: event(h, j, "done"), {SEVERAL}),
    "event after the end": (lambda h, j: event(h, j, "message"), {Rule.TERMINAL_EVENT_NOT_LAST}),
    "another status": (lambda h, j: hset(h, j, status="error"), {DIFFERS}),
    "canceled after done": (lambda h, j: event(h, j, "canceled"), {SEVERAL, DIFFERS}),
    "no stream": (lambda h, j: h.client.set(h.keys.events(j), "x", ex=9), {Rule.EVENTS_UNREADABLE}),
    "tenth field": (lambda h, j: hset(h, j, attempt="1"), {Rule.WRONG_FIELDS}),
    "field renamed": (_field_renamed, {Rule.WRONG_FIELDS}),
    "many fields": (lambda h, j: hset(h, j, **MANY), {Rule.WRONG_FIELDS}),
    "no status": (lambda h, j: h.client.hdel(h.keys.job(j), "status"), {Rule.WRONG_FIELDS}),
    "odd status": (lambda h, j: hset(h, j, status="DONE\n\x1b[31m"), {Rule.WRONG_FIELDS}),
    "no UTF-8": (lambda h, j: h.client.hset(h.keys.job(j), mapping=NO_UTF8), {Rule.WRONG_FIELDS}),
    "another id": (lambda h, j: hset(h, j, job_id="another"), {Rule.WRONG_FIELDS}),
    "record for ever": (lambda h, j: h.client.persist(h.keys.job(j)), {Rule.NO_TTL}),
    "events for ever": (lambda h, j: h.client.persist(h.keys.events(j)), {Rule.NO_TTL}),
    "lease for ever": (lambda h, j: h.client.hset(h.keys.lease(j), "attempt", "1"), {Rule.NO_TTL}),
    "queued twice": (_queued_twice, {Rule.QUEUED_TWICE}),
}


async def test_violations_of_an_ended_job(harness: StoreHarness) -> None:
    """Each is found, with details that are one line, specific and accurate."""
    await done(harness)
    assert await rules(harness) == {}
    cases, expected = {}, {}
    for case, (breaker, broken) in OF_DONE.items():
        job_id = await done(harness)
        await breaker(harness, job_id)
        cases[job_id], expected[job_id] = case, broken
    assert await rules(harness) == expected
    violations = (await audited(harness)).violations
    for violation in violations:
        assert violation.detail.isprintable(), violation
        assert violation.detail.isascii()
        assert len(violation.detail) < 1000
    details = " ".join(violation.detail for violation in violations)
    for word in ("payload", "canceled", "'message'", "2 terminal events", "'another'", "lease"):
        assert word in details
    found = {cases[violation.job_id]: violation.detail for violation in violations}
    assert found["tenth field"] == "the record: has more than 9 fields, such as 'attempt'"
    assert found["field renamed"] == "the record: lacks 'payload', but has 'Payload'"
    assert found["no status"] == "the record: lacks 'status'"
    # A hash with a thousand fields is not read completely, so no field may be called missing.
    assert "lacks" not in found["many fields"]


async def test_a_terminal_event_too_early(harness: StoreHarness) -> None:
    broken = {}
    for status in ("queued", "running"):
        lease = await harness.running(token=status)
        await hset(harness, lease.job_id, status=status)
        await event(harness, lease.job_id, "done")
        await event(harness, lease.job_id, "message")
        broken[lease.job_id] = {Rule.TERMINAL_EVENT_TOO_EARLY}
    assert await rules(harness) == broken


async def test_a_message_acknowledged_before_the_end(harness: StoreHarness) -> None:
    lease = await harness.running()
    await ack(harness, lease.message_id)
    assert await rules(harness) == {}, "somebody runs it under a lease"
    await harness.expire(lease)
    assert await rules(harness) == {lease.job_id: {Rule.ACKED_WITHOUT_END}}
    await harness.client.delete(harness.keys.lease(lease.job_id))
    assert await rules(harness) == {lease.job_id: {Rule.ACKED_WITHOUT_END}}
    # Acknowledgements of another group do not matter.
    lease = await harness.running("t2")
    await harness.client.xgroup_create(harness.keys.queue, "others", id="0")
    await harness.client.xreadgroup("others", "o", {harness.keys.queue: ">"})
    await harness.client.xack(harness.keys.queue, "others", lease.message_id)
    await harness.expire(lease)
    assert lease.job_id not in await rules(harness)


async def test_a_job_without_a_message(harness: StoreHarness) -> None:
    """Trimmed away, deleted while pending, or a producer that died between hash and message."""
    running = await harness.running()
    await harness.expire(running)
    [waiting] = await harness.post()
    [pending] = await harness.post()
    assert len(await harness.take(2)) == 2
    entries = await harness.client.xrange(harness.keys.queue)
    await harness.client.xdel(harness.keys.queue, *[entry_id for entry_id, _ in entries])
    expected = {Rule.NOT_QUEUED}
    assert await rules(harness) == {running.job_id: expected, waiting: expected, pending: expected}


async def test_a_schedule_lease_or_queue_of_the_wrong_type(harness: StoreHarness) -> None:
    [job_id] = await harness.post(delay_ms=60_000, schedule_limit=10)
    assert await rules(harness) == {}
    await harness.client.zadd(harness.keys.scheduled, {job_id: 1})
    await harness.queue.promote([job_id])
    assert await rules(harness) == {}  # it is on the queue now
    [job_id] = await harness.post(delay_ms=60_000, schedule_limit=10)
    await harness.client.delete(harness.keys.scheduled)
    await harness.client.set(harness.keys.scheduled, "x")
    await harness.client.set(harness.keys.lease(job_id), "x", ex=60)
    assert await rules(harness) == {job_id: {Rule.NOT_QUEUED}}
    await harness.client.delete(harness.keys.queue)  # so that the other job has no message
    everything = await rules(harness)
    assert list(everything.values()) == [{Rule.NOT_QUEUED}] * 2
    await harness.client.set(harness.keys.queue, "x")
    assert await rules(harness) == everything


async def test_recently_changed_jobs_need_no_owner(harness: StoreHarness) -> None:
    [job_id] = await harness.post()
    await harness.client.delete(harness.keys.queue)
    assert await rules(harness, grace_s=60.0) == {}
    now = await harness.now_ms()
    for updated in (now - 61_000, now + 61_000, 0):
        await hset(harness, job_id, updated_ts=str(updated))
        assert await rules(harness, grace_s=60.0) == {job_id: {Rule.NOT_QUEUED}}
    for updated in (now - 30_000, now + 30_000):
        await hset(harness, job_id, updated_ts=str(updated))
        assert await rules(harness, grace_s=60.0) == {}


async def test_keys_of_other_applications_are_ignored(harness: StoreHarness) -> None:
    client: Any = harness.client
    await client.set(harness.keys.job("string"), "x")
    await client.rpush(harness.keys.job("list"), "x")
    await client.zadd(harness.keys.job("zset"), {"x": 1})
    await client.xadd(harness.keys.job("stream"), {"x": "y"})
    for name in (b"job:", b"job:a:b", b"job:\xff", b"job:a b", b"job:a\nb", b"job:.a", b"jobs:x"):
        await client.hset(harness.keys.tag.encode() + name, "x", "y")
    await client.hset(harness.keys.job("x" * 129), "x", "y")
    report = await audited(harness)
    assert (report.jobs_checked, report.violations_total) == (0, 0)
    # A hash without the fields of a job is reported.
    await harness.client.hset(harness.keys.job("bare"), "x", "y")
    assert await rules(harness) == {"bare": {Rule.WRONG_FIELDS, Rule.NO_TTL}}
    # So are invalid entries of the queue.
    await client.delete(harness.keys.job("bare"))
    await harness.group()
    await client.xadd(harness.keys.queue, {b"\xff": b"\xff"})
    await client.xadd(harness.keys.queue, {"job_id": b"\xff\xff"})
    await client.xadd(harness.keys.queue, {"job_id": "nobody"})
    await harness.post()
    assert await rules(harness) == {}
    await harness.take(10)
    assert await rules(harness) == {}


MANY_PAGES = pytest.param(1000, marks=pytest.mark.slow("the other lengths have up to three pages"))


@pytest.mark.parametrize("length", [6, 7, 8, 9, 207, 208, 209, 420, MANY_PAGES])
async def test_long_streams_are_read_to_the_end(harness: StoreHarness, length: int) -> None:
    """An early terminal event is found, regardless of the number of events after it."""
    fine, early = await harness.running(token="fine"), await harness.running(token="early")
    await event(harness, early.job_id, "error")
    for lease, written in ((fine, 3), (early, 4)):
        await harness.emit(lease, 1, [note("x")] * (length - written))
        await harness.finish(lease)
        assert await harness.client.xlen(harness.keys.events(lease.job_id)) == length
    assert await rules(harness) == {early.job_id: {Rule.SEVERAL_TERMINAL_EVENTS}}
    events = harness.keys.events(early.job_id)
    await harness.client.xtrim(events, maxlen=1, approximate=False)
    assert await rules(harness) == {}  # a trimmed stream is not a violation


async def test_a_queue_of_several_pages(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "QUEUE_PAGE_SIZE", 3)
    await harness.group()
    await harness.post(25)
    messages = await harness.take(20)
    # Some of them are acknowledged, and some deleted while pending.
    for message_id in messages[:5]:
        await ack(harness, message_id)
    await harness.client.xdel(harness.keys.queue, *messages[8:15])
    found = await rules(harness)
    kinds = [rule for broken in found.values() for rule in broken]
    assert kinds.count(Rule.ACKED_WITHOUT_END) == 5
    assert kinds.count(Rule.NOT_QUEUED) == 7
    assert len(kinds) == 12


async def test_only_the_beginning_of_a_too_long_queue_is_checked(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "QUEUE_PAGE_SIZE", 5)
    monkeypatch.setattr(readers, "MOST_ENTRIES", 10)
    await harness.group()
    first, *_ = await harness.post(20)
    [message_id] = await harness.take()
    await ack(harness, message_id)
    report = await audited(harness)
    assert not report.complete
    assert [(found.job_id, found.rule) for found in report.violations] == [
        (first, Rule.ACKED_WITHOUT_END)
    ]


async def test_all_violations_are_counted_and_the_first_listed(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_NAMED", 3)
    monkeypatch.setattr(audit, "MOST_SUSPECTS", 4)
    monkeypatch.setattr(audit, "BATCH", 3)
    for _ in range(10):
        await event(harness, await done(harness), "done")
    named: list[Violation] = []
    progress: list[int] = []
    report = await auditor_of(harness).run(progress.append, named.append)
    assert (report.jobs_checked, report.violations_total) == (10, 10)
    assert report.violations == tuple(named)
    assert len(named) == 3
    assert (progress[0], progress[-1]) == (0, 10)
    assert progress == sorted(progress)


async def seed(client: redis.asyncio.Redis, keys: JobKeys, count: int) -> None:
    """Thousands of ended jobs, as the scripts leave them."""
    record = dict.fromkeys(("task", "payload", "result", "error"), "x")
    record |= {"status": "done", "created_ts": "1", "updated_ts": "2", "ttl_s": "600"}
    for start in range(0, count, 500):
        pipe = client.pipeline(transaction=False)
        for number in range(start, start + 500):
            job_id = f"seed-{number}"
            pipe.hset(keys.job(job_id), mapping={**record, "job_id": job_id})
            for kind in ("queued", "running", "message", "done"):
                pipe.xadd(keys.events(job_id), {"type": kind, "ts": "1", "step": "s", "data": "{}"})
            pipe.expire(keys.job(job_id), 600)
            pipe.expire(keys.events(job_id), 600)
        await pipe.execute()


@pytest.mark.real_redis
async def test_round_trips_are_bounded(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1000
    await seed(harness.client, harness.keys, count)
    await event(harness, "seed-721", "message")
    sizes: list[int] = []
    read = readers.JobReader._read

    async def counted(self: Any, job_ids: Any) -> Any:
        sizes.append(len(job_ids))
        return await read(self, job_ids)

    monkeypatch.setattr(readers.JobReader, "_read", counted)
    before = await commands(harness)
    report = await audited(harness)
    sent = {name: calls - before.get(name, 0) for name, calls in (await commands(harness)).items()}
    assert (report.jobs_checked, report.violations_total) == (count, 1)
    assert report.violations[0].job_id == "seed-721"
    assert max(sizes) <= audit.BATCH
    # SCAN returns a few jobs more or less each time, so not every batch is full.
    assert len(sizes) < 2.5 * count / audit.BATCH
    assert sent["scan"] < 2 * 2 * count / audit.SCAN_KEYS
    reads = ("time", "scan", "hmget", "hrandfield", "ttl", "xrange")
    assert sum(sent.get(name, 0) for name in reads) < count * 6.2 + 1000
    writes = ("hset", "xadd", "expire", "del", "set", "xack", "evalsha", "hgetall", "keys")
    assert not any(sent.get(name) for name in writes)


async def commands(harness: StoreHarness) -> dict[str, int]:
    stats: Any = await harness.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}


class Meanwhile:
    """Calls a function each time the audit is about to recheck."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], Awaitable[Any]]):
        self.steps = list(steps)
        self._sleep = asyncio.sleep
        monkeypatch.setattr(audit.asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        if seconds == 0.125 and self.steps:
            await self.steps.pop(0)()
        await self._sleep(0)


def event_of(kind: str) -> Breaker:
    return lambda harness, job_id: event(harness, job_id, kind)


#: What is wrong at first, what happens before each recheck, and what is reported.
SUSPICIONS: dict[str, tuple[Breaker, list[Breaker], set[Rule]]] = {
    "disappears": (
        lambda h, j: hset(h, j, extra="x"),
        [lambda h, j: h.client.hdel(h.keys.job(j), "extra")],
        set(),
    ),
    "expires": (event_of("message"), [lambda h, j: h.client.delete(h.keys.job(j))], set()),
    "gets worse once": (event_of("done"), [event_of("done")], {SEVERAL}),
    "keeps changing": (event_of("message"), [event_of("message")] * audit.MAX_RECHECKS, set()),
    "stays": (event_of("message"), [], {Rule.TERMINAL_EVENT_NOT_LAST}),
}


@pytest.mark.parametrize("suspicion", SUSPICIONS)
async def test_only_violations_that_stay_are_reported(
    harness: StoreHarness, suspicion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that keeps changing is left to the next audit."""
    breaker, changes, expected = SUSPICIONS[suspicion]
    job_id = await done(harness)
    await breaker(harness, job_id)
    steps = [partial(change, harness, job_id) for change in changes]
    meanwhile = Meanwhile(monkeypatch, *steps)
    assert await rules(harness, recheck_delay_s=0.125) == ({job_id: expected} if expected else {})
    assert meanwhile.steps == []


async def test_an_end_may_be_half_read(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a third-party worker; another violation of the same job is still reported."""
    lease = await harness.running()
    await event(harness, lease.job_id, "done")
    await harness.client.persist(harness.keys.job(lease.job_id))
    meanwhile = Meanwhile(monkeypatch, lambda: hset(harness, lease.job_id, status="done"))
    assert await rules(harness, recheck_delay_s=0.125) == {lease.job_id: {Rule.NO_TTL}}
    assert meanwhile.steps == []


async def test_the_queue_is_read_again_for_a_recheck(
    harness: StoreHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may reach the queue after the queue was read, and leave the schedule before that is."""
    await harness.group()
    [job_id] = await harness.post(delay_ms=1, schedule_limit=10)
    await asyncio.sleep(0.01)
    collect, promoted = readers.read_queue, False

    async def then_promote(*args: Any) -> Any:
        nonlocal promoted
        facts = await collect(*args)
        if not promoted:
            promoted = True
            await harness.queue.promote([job_id])
        return facts

    monkeypatch.setattr(readers, "read_queue", then_promote)
    assert await rules(harness) == {}
    assert promoted


@pytest.mark.real_redis
@pytest.mark.parametrize(
    ("seconds", "jobs"),
    [(0.2, 40), pytest.param(2.0, 200, marks=pytest.mark.slow("seconds of load"))],
)
async def test_load_causes_no_false_alarm(harness: StoreHarness, seconds: float, jobs: int) -> None:
    """Jobs are created, run, retried, released, canceled, scheduled, ended and deleted all the
    while, without a grace period."""
    await harness.group()
    ended, stream = 0, {harness.keys.queue: ">"}

    async def post(number: int) -> None:
        delayed = {"delay_ms": 5, "schedule_limit": 1000} if number % 5 == 0 else {}
        [job_id] = await harness.post(ttl_s=1, **delayed)
        if delayed:
            await asyncio.sleep(0.006)
            await harness.queue.promote([job_id])
        if number % 7 == 0:
            await harness.cancel(job_id)

    async def begin(job_id: str, message_id: str, token: str) -> Lease | None:
        reply = await harness.begin(job_id, message_id, token)
        runs = reply.answer is Answer.RUN  # or it is canceled, or has expired after its second
        return Lease(job_id, message_id, int(reply.value), token) if runs else None

    async def work(job_id: str, message_id: str, token: str, number: int) -> None:
        lease = await begin(job_id, message_id, token)
        if lease:
            await harness.emit(lease, 1, [note("x")] * (number % 20))
        if lease and number % 3 == 0:
            await (harness.retry(lease, 1) if number % 2 else harness.release(lease))
            await asyncio.sleep(0.003)
            lease = await begin(job_id, message_id, token + "again")
        if lease:
            await harness.finish(lease)

    async def keep_busy(start: int) -> None:
        nonlocal ended
        for number in itertools.count(start, 8):
            await post(number)
            token = f"t{number}"
            group = harness.worker.group
            reply = await harness.client.xreadgroup(group, token, stream, count=1)
            for entry_id, fields in reply[0][1] if reply else ():
                await work(fields[b"job_id"].decode(), entry_id.decode(), token, number)
                ended += 1

    async def keep_trimming() -> None:
        while True:
            await asyncio.sleep(0.02)
            await harness.queue.trim()

    noise = [asyncio.create_task(keep_busy(start)) for start in range(8)]
    noise.append(asyncio.create_task(keep_trimming()))
    checked, auditor = 0, auditor_of(harness)
    clock = asyncio.get_running_loop().time
    start = clock()

    def is_enough() -> bool:
        """On a busy machine it takes longer until enough has happened."""
        return clock() > start + seconds and ended >= jobs and checked >= 5 * jobs

    try:
        while not is_enough() and clock() < start + seconds + 60:
            report = await auditor.run()
            assert report.violations == ()
            checked += report.jobs_checked
            for task in noise:
                assert not task.done(), task.exception()
    finally:
        await cancel(*noise)
    assert is_enough()


async def test_one_audit_at_a_time(harness: StoreHarness) -> None:
    auditor = auditor_of(harness)
    await done(harness)
    first = asyncio.create_task(auditor.run())
    await asyncio.sleep(0)
    with pytest.raises(AuditRunning):
        await auditor.run()
    assert (await first).jobs_checked == 1
    assert (await auditor.run()).jobs_checked == 1


async def test_a_canceled_audit_leaves_no_state(harness: StoreHarness) -> None:
    auditor = auditor_of(harness, recheck_delay_s=60.0)
    await event(harness, await done(harness), "done")
    started = asyncio.Event()
    running = asyncio.create_task(auditor.run(lambda checked: started.set() if checked else None))
    await asyncio.wait_for(started.wait(), 10)
    assert auditor.running
    await cancel(running)
    assert not auditor.running


async def test_an_unavailable_redis(tmp_path: Any, keys: JobKeys) -> None:
    client = async_client(f"unix://{tmp_path}/none", connections=1)
    auditor = Auditor(client, keys, "workers")
    with pytest.raises(StoreUnavailable):
        await auditor.run()
    assert not auditor.running
    with pytest.raises(StoreUnavailable):
        await store_report(client, keys, AuditReport(1, 2, 3))
    with pytest.raises(StoreUnavailable):
        await load_record(client, keys)
    await client.aclose()


async def test_reports_are_stored_and_summed(harness: StoreHarness) -> None:
    client, keys = harness.client, harness.keys
    assert await load_record(client, keys) == AuditRecord()
    found = Violation("j", Rule.NO_TTL, "x")
    await store_report(client, keys, AuditReport(11, 5, 7, (found,), 2))
    await store_report(client, keys, AuditReport(12, 6, 8, (found,) * 500, 501))
    record = await load_record(client, keys)
    assert (record.last_ts, record.last_jobs, record.last_ms) == (12, 6, 8)
    assert (record.last_violations, record.jobs_total, record.violations_total) == (501, 11, 503)
    assert record.last_found.count(b'"no_ttl"') == 100
    assert 29 * 24 * 3600 < await client.ttl(keys.audit) <= 30 * 24 * 3600
    assert set(await client.hkeys(keys.audit)) == {name.encode() for name in AUDIT_FIELDS}
    # An invalid record counts as none.
    invalid: Any = {"last_ts": b"\xff", "jobs_total": "many"}
    await client.delete(keys.audit)
    await client.hset(keys.audit, mapping=invalid)
    assert await load_record(client, keys) == AuditRecord()
    with pytest.raises(StoreUnavailable):
        await store_report(client, keys, AuditReport(1, 2, 3))
    await client.delete(keys.audit)
    await client.set(keys.audit, "x")
    assert await load_record(client, keys) == AuditRecord()
