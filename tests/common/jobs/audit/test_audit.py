"""The auditor reports every violated guarantee, and never a healthy job."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from common.aio import cancel
from common.contracts.jobs import JobKeys
from common.errors import StoreUnavailable
from common.jobs.audit import auditor as audit
from common.jobs.audit import readers
from common.jobs.audit.auditor import Auditor, AuditPace, AuditRunning
from common.jobs.audit.report import (
    AUDIT_FIELDS,
    AuditRecord,
    AuditReport,
    Violation,
    load_record,
    store_report,
)
from common.jobs.audit.rules import Rule
from common.jobs.store import Lease
from common.redis.connection import async_client
from tests.common.kit import FAILED, Scene, note

QUICK = AuditPace(grace_s=0.0, pause_s=0.0, recheck_delay_s=0.01)


def auditor_of(scene: Scene, **pace: float) -> Auditor:
    chosen = {"grace_s": 0.0, "pause_s": 0.0, "recheck_delay_s": 0.01, **pace}
    return Auditor(scene.client, scene.keys, scene.worker.group, AuditPace(**chosen))


async def audited(scene: Scene, **pace: float) -> AuditReport:
    return await auditor_of(scene, **pace).run()


async def rules(scene: Scene, **pace: float) -> dict[str, set[Rule]]:
    """The violations that an audit finds, by job."""
    found: dict[str, set[Rule]] = {}
    report = await audited(scene, **pace)
    for violation in report.violations:
        assert violation.detail
        found.setdefault(violation.job_id, set()).add(violation.rule)
    assert report.violations_total == len(report.violations)
    return found


async def done(scene: Scene, **job: Any) -> str:
    lease = await scene.running(token=uuid.uuid4().hex, **job)
    await scene.finish(lease)
    return lease.job_id


async def event(scene: Scene, job_id: str, kind: str) -> None:
    fields: Any = {"type": kind, "ts": "1", "step": "by.hand", "data": "{}"}
    await scene.client.xadd(scene.keys.events(job_id), fields)


async def hset(scene: Scene, job_id: str, /, **fields: str) -> None:
    await scene.client.hset(scene.keys.job(job_id), mapping=fields)  # type: ignore[misc]


async def ack(scene: Scene, message_id: str) -> None:
    await scene.client.xack(scene.keys.queue, scene.worker.group, message_id)


# -- healthy -------------------------------------------------------------------------------


async def test_no_jobs(scene: Scene) -> None:
    report = await audited(scene)
    assert (report.jobs_checked, report.violations, report.violations_total) == (0, (), 0)
    assert report.complete
    assert abs(report.ts / 1000 - (await scene.client.time())[0]) < 60


async def test_healthy_jobs_in_every_state(scene: Scene) -> None:
    await done(scene)
    failed = await scene.running(token="failed")
    await scene.finish(failed, FAILED)
    await scene.running(token="running")
    retried = await scene.running(token="retried")
    await scene.store.retry(retried, scene.worker, 60_000, b'{"kind":"x"}', b"{}")
    released = await scene.running(token="released")
    await scene.store.release(released, scene.worker, b"{}")
    canceling = await scene.running(token="canceling")
    await scene.store.cancel(canceling.job_id, scene.worker.group, b"{}", 600)
    silent = await scene.running(token="silent")
    await scene.expire(silent)
    await scene.post()
    await scene.post(max_attempts=3)
    await scene.post(delay_ms=60_000, schedule_limit=10)
    for changes in ({}, {"delay_ms": 60_000, "schedule_limit": 10}):
        [job_id] = await scene.post(**changes)
        await scene.store.cancel(job_id, scene.worker.group, b"{}", 600)
    expired = await scene.post(ttl_s=60)
    await scene.client.delete(scene.keys.job(expired[0]), scene.keys.events(expired[0]))
    assert await rules(scene) == {}
    assert (await audited(scene)).jobs_checked == 12


async def test_without_a_group_all_messages_are_waiting(scene: Scene) -> None:
    await scene.post(3)
    assert await rules(scene) == {}


async def test_a_third_party_worker_without_leases(scene: Scene) -> None:
    await scene.group()
    [job_id] = await scene.post()
    [message_id] = await scene.take(consumer="foreign")
    await hset(scene, job_id, status="running")
    await event(scene, job_id, "running")
    assert await rules(scene) == {}
    await hset(scene, job_id, status="done")
    # Its end is half written; if it died here, the next worker would add the event.
    await scene.client.hset(scene.keys.job(job_id), "updated_ts", await now_ms(scene))  # type: ignore[misc]
    assert await rules(scene, grace_s=60.0) == {}
    assert await rules(scene) == {job_id: {Rule.NO_TERMINAL_EVENT}}
    await event(scene, job_id, "done")
    await ack(scene, message_id)
    assert await rules(scene) == {}


async def now_ms(scene: Scene) -> int:
    seconds, micros = await scene.client.time()
    return int(seconds * 1000 + micros // 1000)


async def test_the_audit_writes_nothing(scene: Scene) -> None:
    await done(scene)
    [lost] = await scene.post()
    await scene.client.delete(scene.keys.queue)
    await scene.client.persist(scene.keys.job(lost))
    before = await scene.snapshot()
    assert (await audited(scene)).violations_total == 2
    assert await scene.snapshot() == before


# -- each violation, by hand ---------------------------------------------------------------

Breaker = Callable[[Scene, str], Awaitable[None]]


async def _no_event(scene: Scene, job_id: str) -> None:
    [*_, (last, _)] = await scene.client.xrange(scene.keys.events(job_id))
    await scene.client.xdel(scene.keys.events(job_id), last)


async def _no_events_at_all(scene: Scene, job_id: str) -> None:
    await scene.client.delete(scene.keys.events(job_id))


async def _twice(scene: Scene, job_id: str) -> None:
    await event(scene, job_id, "done")


async def _message_after_the_end(scene: Scene, job_id: str) -> None:
    await event(scene, job_id, "message")


async def _another_status(scene: Scene, job_id: str) -> None:
    await hset(scene, job_id, status="error")


async def _canceled_after_done(scene: Scene, job_id: str) -> None:
    await event(scene, job_id, "canceled")


async def _no_stream(scene: Scene, job_id: str) -> None:
    await scene.client.set(scene.keys.events(job_id), "x", ex=100)


async def _tenth_field(scene: Scene, job_id: str) -> None:
    await hset(scene, job_id, attempt="1")


async def _ninth_renamed(scene: Scene, job_id: str) -> None:
    await scene.client.hdel(scene.keys.job(job_id), "payload")  # type: ignore[misc]
    await hset(scene, job_id, Payload="{}")


async def _many_fields(scene: Scene, job_id: str) -> None:
    await hset(scene, job_id, **{f"extra{number}": "" for number in range(1000)})


async def _no_status(scene: Scene, job_id: str) -> None:
    await scene.client.hdel(scene.keys.job(job_id), "status")  # type: ignore[misc]


async def _odd_status(scene: Scene, job_id: str) -> None:
    await hset(scene, job_id, status="DONE\n\x1b[31m")


async def _no_utf8(scene: Scene, job_id: str) -> None:
    raw: Any = {b"status": b"\xff\xfe", b"updated_ts": b"\xff", b"\xff": b"\xff"}
    await scene.client.hset(scene.keys.job(job_id), mapping=raw)  # type: ignore[misc]


async def _anothers_id(scene: Scene, job_id: str) -> None:
    await hset(scene, job_id, job_id="another")


async def _hash_for_ever(scene: Scene, job_id: str) -> None:
    await scene.client.persist(scene.keys.job(job_id))


async def _events_for_ever(scene: Scene, job_id: str) -> None:
    await scene.client.persist(scene.keys.events(job_id))


async def _lease_for_ever(scene: Scene, job_id: str) -> None:
    await scene.client.hset(scene.keys.lease(job_id), "attempt", "1")  # type: ignore[misc]


async def _queued_twice(scene: Scene, job_id: str) -> None:
    for _ in range(2):
        await scene.client.xadd(scene.keys.queue, {"job_id": job_id, "task": "chat"})


OF_DONE: list[tuple[Breaker, set[Rule]]] = [
    (_no_event, {Rule.NO_TERMINAL_EVENT}),
    (_no_events_at_all, {Rule.NO_TERMINAL_EVENT}),
    (_twice, {Rule.SEVERAL_TERMINAL_EVENTS}),
    (_message_after_the_end, {Rule.TERMINAL_EVENT_NOT_LAST}),
    (_another_status, {Rule.TERMINAL_EVENT_DIFFERS}),
    (_canceled_after_done, {Rule.SEVERAL_TERMINAL_EVENTS, Rule.TERMINAL_EVENT_DIFFERS}),
    (_no_stream, {Rule.EVENTS_UNREADABLE}),
    (_tenth_field, {Rule.WRONG_FIELDS}),
    (_ninth_renamed, {Rule.WRONG_FIELDS}),
    (_many_fields, {Rule.WRONG_FIELDS}),
    (_no_status, {Rule.WRONG_FIELDS}),
    (_odd_status, {Rule.WRONG_FIELDS}),
    (_no_utf8, {Rule.WRONG_FIELDS}),
    (_anothers_id, {Rule.WRONG_FIELDS}),
    (_hash_for_ever, {Rule.NO_TTL}),
    (_events_for_ever, {Rule.NO_TTL}),
    (_lease_for_ever, {Rule.NO_TTL}),
    (_queued_twice, {Rule.QUEUED_TWICE}),
]


@pytest.mark.parametrize(
    ("breaker", "expected"), OF_DONE, ids=[breaker.__name__[1:] for breaker, _ in OF_DONE]
)
async def test_violations_of_an_ended_job(
    scene: Scene, breaker: Breaker, expected: set[Rule]
) -> None:
    await done(scene)
    broken = await done(scene)
    assert await rules(scene) == {}
    await breaker(scene, broken)
    assert await rules(scene) == {broken: expected}


async def test_details_are_one_line_and_specific(scene: Scene) -> None:
    for breaker, _ in OF_DONE:
        await breaker(scene, await done(scene))
    report = await audited(scene)
    for violation in report.violations:
        assert violation.detail.isprintable(), violation
        assert violation.detail.isascii()
        assert len(violation.detail) < 1000
    details = " ".join(violation.detail for violation in report.violations)
    for word in ("payload", "canceled", "'message'", "2 terminal events", "'another'", "lease"):
        assert word in details


async def test_details_of_wrong_fields_are_accurate(scene: Scene) -> None:
    """A hash with a thousand fields is not read completely, so no field may be called missing."""
    said = {}
    for breaker in (_tenth_field, _ninth_renamed, _many_fields, _no_status):
        job_id = await done(scene)
        await breaker(scene, job_id)
        said[job_id] = breaker
    found = {said[item.job_id]: item.detail for item in (await audited(scene)).violations}
    assert found[_tenth_field] == "the record: has more than 9 fields, such as 'attempt'"
    assert found[_ninth_renamed] == "the record: lacks 'payload', but has 'Payload'"
    assert found[_no_status] == "the record: lacks 'status'"
    assert "lacks" not in found[_many_fields]


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_a_terminal_event_too_early(scene: Scene, status: str) -> None:
    lease = await scene.running()
    await hset(scene, lease.job_id, status=status)
    await event(scene, lease.job_id, "done")
    await event(scene, lease.job_id, "message")
    assert await rules(scene) == {lease.job_id: {Rule.TERMINAL_EVENT_TOO_EARLY}}


async def test_a_message_acknowledged_before_the_end(scene: Scene) -> None:
    lease = await scene.running()
    await ack(scene, lease.message_id)
    assert await rules(scene) == {}, "somebody runs it under a lease"
    await scene.expire(lease)
    assert await rules(scene) == {lease.job_id: {Rule.ACKED_WITHOUT_END}}
    await scene.client.delete(scene.keys.lease(lease.job_id))
    assert await rules(scene) == {lease.job_id: {Rule.ACKED_WITHOUT_END}}


async def test_a_job_without_a_message(scene: Scene) -> None:
    """Trimmed away, deleted while pending, or a producer that died between hash and message."""
    running = await scene.running()
    await scene.expire(running)
    [waiting] = await scene.post()
    [pending] = await scene.post()
    [_, taken] = await scene.take(2)
    entries = await scene.client.xrange(scene.keys.queue)
    await scene.client.xdel(scene.keys.queue, *[entry_id for entry_id, _ in entries])
    expected = {Rule.NOT_QUEUED}
    found = await rules(scene)
    assert found == {running.job_id: expected, waiting: expected, pending: expected}
    assert taken


async def test_a_missing_queue_or_one_of_the_wrong_type(scene: Scene) -> None:
    [job_id] = await scene.post()
    await scene.client.delete(scene.keys.queue)
    assert await rules(scene) == {job_id: {Rule.NOT_QUEUED}}
    await scene.client.set(scene.keys.queue, "x")
    assert await rules(scene) == {job_id: {Rule.NOT_QUEUED}}


async def test_schedule_and_lease_of_the_wrong_type(scene: Scene) -> None:
    [job_id] = await scene.post(delay_ms=60_000, schedule_limit=10)
    assert await rules(scene) == {}
    await scene.client.delete(scene.keys.scheduled)
    await scene.client.set(scene.keys.scheduled, "x")
    await scene.client.set(scene.keys.lease(job_id), "x", ex=60)
    assert await rules(scene) == {job_id: {Rule.NOT_QUEUED}}


async def test_a_promoted_job_is_on_the_queue(scene: Scene) -> None:
    [job_id] = await scene.post(delay_ms=1, schedule_limit=10)
    await asyncio.sleep(0.01)
    await scene.queue.promote([job_id])
    assert await rules(scene) == {}


async def test_recently_changed_jobs_need_no_owner(scene: Scene) -> None:
    [job_id] = await scene.post()
    await scene.client.delete(scene.keys.queue)
    assert await rules(scene, grace_s=60.0) == {}
    now = await now_ms(scene)
    for updated in (now - 61_000, now + 61_000, 0):
        await hset(scene, job_id, updated_ts=str(updated))
        assert await rules(scene, grace_s=60.0) == {job_id: {Rule.NOT_QUEUED}}
    for updated in (now - 30_000, now + 30_000):
        await hset(scene, job_id, updated_ts=str(updated))
        assert await rules(scene, grace_s=60.0) == {}


async def test_acknowledgements_of_another_group_do_not_matter(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.xgroup_create(scene.keys.queue, "others", id="0")
    await scene.client.xreadgroup("others", "o", {scene.keys.queue: ">"})
    await scene.client.xack(scene.keys.queue, "others", lease.message_id)
    await scene.expire(lease)
    assert await rules(scene) == {}


# -- hostile keys --------------------------------------------------------------------------


async def test_keys_of_other_applications_are_ignored(scene: Scene) -> None:
    client: Any = scene.client
    await client.set(scene.keys.job("string"), "x")
    await client.rpush(scene.keys.job("list"), "x")
    await client.zadd(scene.keys.job("zset"), {"x": 1})
    await client.xadd(scene.keys.job("stream"), {"x": "y"})
    for name in (b"job:", b"job:a:b", b"job:\xff", b"job:a b", b"job:a\nb", b"job:.a", b"jobs:x"):
        await client.hset(scene.keys.tag.encode() + name, "x", "y")
    await client.hset(scene.keys.job("x" * 129), "x", "y")
    report = await audited(scene)
    assert (report.jobs_checked, report.violations_total) == (0, 0)


async def test_a_hash_without_the_fields_of_a_job_is_reported(scene: Scene) -> None:
    await scene.client.hset(scene.keys.job("bare"), "x", "y")  # type: ignore[misc]
    assert await rules(scene) == {"bare": {Rule.WRONG_FIELDS, Rule.NO_TTL}}


async def test_invalid_queue_entries(scene: Scene) -> None:
    client: Any = scene.client
    await scene.group()
    await client.xadd(scene.keys.queue, {b"\xff": b"\xff"})
    await client.xadd(scene.keys.queue, {"job_id": b"\xff\xff"})
    await client.xadd(scene.keys.queue, {"job_id": "nobody"})
    [job_id] = await scene.post()
    assert await rules(scene) == {}
    await scene.take(10)
    assert await rules(scene) == {}
    assert job_id


# -- size ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [6, 7, 8, 9, 207, 208, 209, 1000])
async def test_long_streams_are_read_to_the_end(scene: Scene, length: int) -> None:
    ids = []
    for token in ("fine", "early"):
        lease = await scene.running(token=token)
        ids.append(lease.job_id)
        if token == "early":
            await event(scene, lease.job_id, "error")
        await scene.emit(lease, 1, [note("x")] * (length - (3 if token == "fine" else 4)))
        await scene.finish(lease)
        assert await scene.client.xlen(scene.keys.events(lease.job_id)) == length
    assert await rules(scene) == {ids[1]: {Rule.SEVERAL_TERMINAL_EVENTS}}


async def test_a_trimmed_stream(scene: Scene) -> None:
    job_id = await done(scene)
    await scene.client.xtrim(scene.keys.events(job_id), maxlen=1, approximate=False)
    assert await rules(scene) == {}


async def test_a_queue_of_many_pages(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "QUEUE_PAGE_SIZE", 3)
    await scene.group()
    await scene.post(25)
    messages = await scene.take(20)
    # Some of them are acknowledged, and some deleted while pending.
    for message_id in messages[:5]:
        await ack(scene, message_id)
    await scene.client.xdel(scene.keys.queue, *messages[8:15])
    found = await rules(scene)
    kinds = [rule for broken in found.values() for rule in broken]
    assert kinds.count(Rule.ACKED_WITHOUT_END) == 5
    assert kinds.count(Rule.NOT_QUEUED) == 7
    assert len(kinds) == 12


async def test_only_the_beginning_of_a_too_long_queue_is_checked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "QUEUE_PAGE_SIZE", 5)
    monkeypatch.setattr(readers, "MOST_ENTRIES", 10)
    await scene.group()
    first, *_ = await scene.post(20)
    [message_id] = await scene.take()
    await ack(scene, message_id)
    report = await audited(scene)
    assert not report.complete
    assert [(found.job_id, found.rule) for found in report.violations] == [
        (first, Rule.ACKED_WITHOUT_END)
    ]


async def test_all_violations_are_counted_and_the_first_listed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_NAMED", 3)
    monkeypatch.setattr(audit, "MOST_SUSPECTS", 4)
    monkeypatch.setattr(audit, "BATCH", 3)
    for _ in range(10):
        await _twice(scene, await done(scene))
    named: list[Violation] = []
    progress: list[int] = []
    report = await auditor_of(scene).run(progress.append, named.append)
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


async def test_round_trips_for_five_thousand_jobs_are_bounded(real_scene: Scene) -> None:
    scene = real_scene
    await seed(scene.client, scene.keys, 5000)
    await event(scene, "seed-4321", "message")
    batches = 0
    most = 0
    look = readers.JobReader._read

    async def counted(self: Any, job_ids: Any) -> Any:
        nonlocal batches, most
        batches, most = batches + 1, max(most, len(job_ids))
        return await look(self, job_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers.JobReader, "_read", counted)
        before = await commands(scene)
        report = await audited(scene)
        sent = {
            name: count - before.get(name, 0) for name, count in (await commands(scene)).items()
        }
    assert (report.jobs_checked, report.violations_total) == (5000, 1)
    assert report.violations[0].job_id == "seed-4321"
    assert most <= audit.BATCH
    # SCAN returns a few jobs more or less each time, so not every batch is full.
    assert batches < 2.5 * 5000 / audit.BATCH
    assert sent["scan"] < 2 * 10_000 / audit.SCAN_KEYS
    reads = ("time", "scan", "hmget", "hrandfield", "ttl", "xrange")
    assert sum(sent.get(name, 0) for name in reads) < 5000 * 6.2 + 1000
    writes = ("hset", "xadd", "expire", "del", "set", "xack", "evalsha", "hgetall", "keys")
    assert not any(sent.get(name) for name in writes)


async def commands(scene: Scene) -> dict[str, int]:
    stats: Any = await scene.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}


# -- temporary suspicions ------------------------------------------------------------------


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


async def test_a_violation_that_disappears_is_not_reported(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await done(scene)
    await hset(scene, job_id, extra="x")
    await scene.client.persist(scene.keys.job(job_id))

    async def heal() -> None:
        await scene.client.hdel(scene.keys.job(job_id), "extra")  # type: ignore[misc]

    Meanwhile(monkeypatch, heal)
    assert await rules(scene, recheck_delay_s=0.125) == {job_id: {Rule.NO_TTL}}


async def test_a_changed_job_is_checked_once_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First one half of a third-party worker's end was read, then the other."""
    lease = await scene.running()
    await event(scene, lease.job_id, "done")

    async def other_half() -> None:
        await hset(scene, lease.job_id, status="done")

    async def one_more() -> None:
        await event(scene, lease.job_id, "done")

    meanwhile = Meanwhile(monkeypatch, other_half)
    assert await rules(scene, recheck_delay_s=0.125) == {}
    assert meanwhile.steps == []
    await event(scene, lease.job_id, "done")
    meanwhile.steps = [one_more]
    assert await rules(scene, recheck_delay_s=0.125) == {
        lease.job_id: {Rule.SEVERAL_TERMINAL_EVENTS}
    }


async def test_a_job_that_keeps_changing_is_left_to_the_next_audit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await done(scene)
    await event(scene, job_id, "message")
    changes = [lambda: event(scene, job_id, "message")] * audit.MAX_RECHECKS
    Meanwhile(monkeypatch, *changes)
    assert await rules(scene, recheck_delay_s=0.125) == {}
    assert await rules(scene, recheck_delay_s=0.125) == {job_id: {Rule.TERMINAL_EVENT_NOT_LAST}}


async def test_a_job_that_expires_during_the_audit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await done(scene)
    await event(scene, job_id, "message")
    Meanwhile(monkeypatch, lambda: scene.client.delete(scene.keys.job(job_id)))
    assert await rules(scene, recheck_delay_s=0.125) == {}


async def test_the_queue_is_read_again_for_a_recheck(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may reach the queue after the queue was read, and leave the schedule before that is."""
    await scene.group()
    [job_id] = await scene.post(delay_ms=1, schedule_limit=10)
    await asyncio.sleep(0.01)
    collect, promoted = readers.read_queue, False

    async def then_promote(*args: Any) -> Any:
        nonlocal promoted
        facts = await collect(*args)
        if not promoted:
            promoted = True
            await scene.queue.promote([job_id])
        return facts

    monkeypatch.setattr(readers, "read_queue", then_promote)
    assert await rules(scene) == {}
    assert promoted


async def test_a_busy_system_causes_no_false_alarm(real_scene: Scene) -> None:
    """Jobs are created, run, retried, released, canceled, scheduled, ended and deleted all the
    while, without a grace period."""
    scene = real_scene
    await scene.group()
    ended = 0

    async def one(number: int) -> None:
        nonlocal ended
        token = f"t{number}"
        if number % 5 == 0:
            [job_id] = await scene.post(delay_ms=5, schedule_limit=1000, ttl_s=1)
            await asyncio.sleep(0.006)
            await scene.queue.promote([job_id])
        else:
            [job_id] = await scene.post(ttl_s=1)
        if number % 7 == 0:
            await scene.store.cancel(job_id, scene.worker.group, b"{}", 600)
        reply = await scene.client.xreadgroup(
            scene.worker.group, token, {scene.keys.queue: ">"}, count=1
        )
        for entry_id, fields in reply[0][1] if reply else ():
            await work(fields[b"job_id"].decode(), entry_id.decode(), token, number)
            ended += 1

    async def work(job_id: str, message_id: str, token: str, number: int) -> None:
        reply = await scene.begin(job_id, message_id, token)
        if reply.answer.value != "run":
            return
        lease = Lease(job_id, message_id, int(reply.value), token)
        await scene.emit(lease, 1, [note("x")] * (number % 20))
        if number % 3 == 0:
            if number % 2:
                await scene.store.retry(lease, scene.worker, 1, b'{"kind":"x"}', b"{}")
            else:
                await scene.store.release(lease, scene.worker, b"{}")
            await asyncio.sleep(0.003)
            reply = await scene.begin(job_id, message_id, token + "again")
            if reply.answer.value != "run":
                return  # canceled meanwhile by its creator, or expired after its second
            lease = Lease(job_id, message_id, int(reply.value), token + "again")
        await scene.finish(lease)

    async def keep_busy(start: int) -> None:
        number = start
        while True:
            await one(number)
            number += 8

    async def keep_trimming() -> None:
        while True:
            await asyncio.sleep(0.02)
            await scene.queue.trim()

    noise = [asyncio.create_task(keep_busy(start)) for start in range(8)]
    noise.append(asyncio.create_task(keep_trimming()))
    checked = 0
    try:
        auditor = Auditor(scene.client, scene.keys, scene.worker.group, QUICK)
        clock = asyncio.get_running_loop().time
        deadline = clock() + 5
        # On a busy machine it takes longer until enough has happened.
        while clock() < deadline or ((ended < 200 or checked < 1000) and clock() < deadline + 60):
            report = await auditor.run()
            assert report.violations == ()
            checked += report.jobs_checked
            for task in noise:
                assert not task.done(), task.exception()
    finally:
        await cancel(*noise)
    assert ended >= 200
    assert checked >= 1000


# -- life ----------------------------------------------------------------------------------


async def test_one_audit_at_a_time(scene: Scene) -> None:
    auditor = auditor_of(scene)
    await done(scene)
    first = asyncio.create_task(auditor.run())
    await asyncio.sleep(0)
    with pytest.raises(AuditRunning):
        await auditor.run()
    assert (await first).jobs_checked == 1
    assert (await auditor.run()).jobs_checked == 1


async def test_a_canceled_audit_leaves_no_state(scene: Scene) -> None:
    auditor = auditor_of(scene, recheck_delay_s=60.0)
    await _twice(scene, await done(scene))
    started = asyncio.Event()
    running = asyncio.create_task(auditor.run(lambda checked: started.set() if checked else None))
    await asyncio.wait_for(started.wait(), 10)
    assert auditor.running
    await cancel(running)
    assert not auditor.running


async def test_an_unavailable_redis(tmp_path: Any, keys: JobKeys) -> None:
    client = async_client(f"unix://{tmp_path}/none", connections=1)
    auditor = Auditor(client, keys, "workers", QUICK)
    with pytest.raises(StoreUnavailable):
        await auditor.run()
    assert not auditor.running
    with pytest.raises(StoreUnavailable):
        await store_report(client, keys, AuditReport(1, 2, 3))
    with pytest.raises(StoreUnavailable):
        await load_record(client, keys)
    await client.aclose()


# -- the record ----------------------------------------------------------------------------


async def test_reports_are_stored_and_summed(scene: Scene) -> None:
    client, keys = scene.client, scene.keys
    assert await load_record(client, keys) == AuditRecord()
    found = Violation("j", Rule.NO_TTL, "x")
    await store_report(client, keys, AuditReport(11, 5, 7, (found,), 2))
    await store_report(client, keys, AuditReport(12, 6, 8, (found,) * 500, 501))
    record = await load_record(client, keys)
    assert (record.last_ts, record.last_jobs, record.last_ms) == (12, 6, 8)
    assert (record.last_violations, record.jobs_total, record.violations_total) == (501, 11, 503)
    assert record.last_found.count(b'"no_ttl"') == 100
    assert 29 * 24 * 3600 < await client.ttl(keys.audit) <= 30 * 24 * 3600
    assert set(await client.hkeys(keys.audit)) == {name.encode() for name in AUDIT_FIELDS}  # type: ignore[misc]


async def test_an_invalid_stored_record(scene: Scene) -> None:
    client: Any = scene.client
    await client.hset(scene.keys.audit, mapping={"last_ts": b"\xff", "jobs_total": "many"})
    assert await load_record(client, scene.keys) == AuditRecord()
    with pytest.raises(StoreUnavailable):
        await store_report(client, scene.keys, AuditReport(1, 2, 3))
    await client.delete(scene.keys.audit)
    await client.set(scene.keys.audit, "x")
    assert await load_record(client, scene.keys) == AuditRecord()
