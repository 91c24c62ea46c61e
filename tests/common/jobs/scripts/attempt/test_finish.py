"""FINISH, RETRY and RELEASE: one end, by the attempt that owns the job, and the ack last of all.

A retry follows a failure and uses an attempt. A release comes from a stopping worker, uses none,
and makes the message available at once. The next attempt has the same message; the last one writes
nothing more.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.contracts.jobs import LEASE_MAX_MS
from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Lease
from tests.support.store.jobs import DONE, FAILED, GIVEN_UP, WHY, StoreHarness, note


@pytest.mark.parametrize("ending", [DONE, FAILED])
async def test_ok_writes_result_event_and_ack(harness: StoreHarness, ending: object) -> None:
    lease = await harness.running(ttl_s=90)
    before = await harness.job(lease.job_id)
    await harness.set_ttls(lease.job_id, 5, "job", "events")
    assert await harness.finish(lease, ending) is Answer.OK
    job = await harness.job(lease.job_id)
    status = ending.status.encode()
    assert (job[b"status"], len(job)) == (status, 9)
    assert (job[b"result"], job[b"error"]) == (ending.result, ending.error)
    assert int(job[b"updated_ts"]) >= int(before[b"updated_ts"])
    assert job[b"created_ts"] == before[b"created_ts"]
    last = {b"type": status, b"ts": job[b"updated_ts"], b"step": ending.step.encode()}
    assert (await harness.events(lease.job_id))[-1] == {**last, b"data": ending.data}
    assert await harness.pending() == 0
    assert not await harness.held(lease.job_id)
    await harness.check_ttls(lease.job_id, 90, "job", "events")
    assert (await harness.store.counts()).ended == 1
    assert await harness.client.ttl(harness.keys.counts) > 0


async def test_unsent_events_come_before_the_end_once(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.emit(lease, 1, [note("a")])
    assert await harness.finish(lease, first=2, events=[note("b"), note("c")]) is Answer.OK
    data = (await harness.data(lease.job_id))[2:]
    assert data == [b'{"text":"a"}', b'{"text":"b"}', b'{"text":"c"}', DONE.data]
    async with harness.unchanged():
        assert await harness.finish(lease, first=2, events=[note("b")]) is Answer.ALREADY
        assert await harness.finish(lease, FAILED) is Answer.ALREADY
    assert (await harness.store.counts()).ended == 1
    leases = [await harness.running(f"t{n}") for n in range(5)]  # in one call
    answers = await asyncio.gather(*(harness.finish(lease) for lease in [*leases, *leases]))
    assert answers == [Answer.OK] * 5 + [Answer.ALREADY] * 5
    assert (await harness.store.counts()).ended == 6


async def test_an_ack_implies_a_terminal_event(harness: StoreHarness) -> None:
    """I3: a third-party worker set the status but died before its event. FINISH acks, so it must
    write a terminal event as BEGIN does; otherwise clients would wait for ever."""
    lease = await harness.running()
    await harness.client.hset(harness.keys.job(lease.job_id), "status", "canceled")
    assert await harness.finish(lease) is Answer.ALREADY
    assert await harness.pending() == 0
    assert await harness.status(lease.job_id) == b"canceled"
    assert (await harness.types(lease.job_id))[-1] == b"canceled"


async def test_a_missing_group_does_not_prevent_an_end(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.client.delete(harness.keys.queue)
    assert await harness.finish(lease) is Answer.OK
    assert (await harness.types(lease.job_id))[-1] == b"done"
    assert not await harness.client.exists(harness.keys.queue)


# -- RETRY and RELEASE ----------------------------------------------------------------------------


both = pytest.mark.parametrize("operation", ["retry", "release"])


async def call(harness: StoreHarness, operation: str, lease: Lease, **rest: Any) -> Answer:
    return await getattr(harness, operation)(lease, **rest)


@both
async def test_ok_queues_the_job_with_its_message(harness: StoreHarness, operation: str) -> None:
    lease = await harness.running(ttl_s=90)
    before = await harness.job(lease.job_id)
    delay = {"delay_ms": 5000} if operation == "retry" else {}
    assert await call(harness, operation, lease, **delay) is Answer.OK
    after = await harness.job(lease.job_id)
    assert after.pop(b"status") == b"queued"
    updated = after.pop(b"updated_ts")
    assert int(updated) >= int(before.pop(b"updated_ts"))
    before.pop(b"status")
    assert after == before  # neither result nor error yet
    kind = b"retry" if operation == "retry" else b"released"
    step = f"worker.{operation}".encode()
    assert (await harness.events(lease.job_id))[2:] == [
        {b"type": kind, b"ts": updated, b"step": step, b"data": WHY}
    ]
    held = await harness.held(lease.job_id)
    assert (held[b"attempt"], held[b"deadline_ms"]) == (b"1", b"0")
    assert held[b"message_id"] == lease.message_id.encode()
    if operation == "retry":
        assert int(held[b"not_before_ms"]) == int(updated) + 5000
    else:
        assert held[b"released"] == b"1"
        assert b"not_before_ms" not in held
        await harness.check_ttls(lease.job_id, 90)
    assert await harness.pending() == 1
    assert await harness.client.xlen(harness.keys.queue) == 1
    assert (await harness.store.counts()).ended == 0
    assert await harness.letters() == []


@both
async def test_repeats_change_nothing_and_events_come_first(
    harness: StoreHarness, operation: str
) -> None:
    lease = await harness.running()
    unsent = {"first": 1, "events": [note("a")]}
    assert await call(harness, operation, lease, **unsent) is Answer.OK
    later = {"delay_ms": 9000, "error": b'{"kind":"late"}'} if operation == "retry" else {}
    async with harness.unchanged():
        for _ in range(2):
            assert await call(harness, operation, lease, **unsent, **later) is Answer.OK
    last = b"retry" if operation == "retry" else b"released"
    assert await harness.types(lease.job_id) == [b"queued", b"running", b"message", last]
    lease = await harness.running("u1")
    await harness.emit(lease, 1, [note("a")])
    await call(harness, operation, lease, first=1, events=[note("a"), note("b")])
    assert (await harness.data(lease.job_id))[2:] == [b'{"text":"a"}', b'{"text":"b"}', WHY]
    second = await harness.again(lease, "u2")
    await harness.finish(second, first=1, events=[note("c")])
    assert (await harness.data(lease.job_id))[-2:] == [b'{"text":"c"}', DONE.data]


@both
async def test_the_attempt_writes_nothing_more(harness: StoreHarness, operation: str) -> None:
    first = await harness.running()
    await call(harness, operation, first)
    await harness.writes_nothing(first)
    # Knowing the format of the spent token does not help either.
    spent = first._replace(token=(await harness.held(first.job_id))[b"token"].decode())
    assert spent.token != first.token
    second = await harness.again(first, "t2")
    await harness.writes_nothing(first)
    await harness.writes_nothing(spent)
    async with harness.unchanged():
        assert await harness.retry(first) is Answer.LOST
        assert await harness.release(first) is Answer.LOST
    assert await harness.finish(second) is Answer.OK
    await harness.writes_nothing(first)


@both
async def test_a_deleted_message_is_written_again(harness: StoreHarness, operation: str) -> None:
    """Otherwise no worker would ever get the job again."""
    lease = await harness.running()
    await harness.client.delete(harness.keys.queue)
    assert await call(harness, operation, lease) is Answer.OK
    assert await harness.status(lease.job_id) == b"queued"
    [(message_id, fields)] = await harness.client.xrange(harness.keys.queue)
    expected = {b"job_id": lease.job_id.encode(), b"task": b"chat", b"payload": b'{"text":"hello"}'}
    assert fields == expected
    assert (await harness.held(lease.job_id))[b"message_id"] == message_id


async def test_the_next_attempt_waits_for_the_delay(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.retry(lease, 60_000)
    async with harness.unchanged():
        reply = await harness.begin_next(lease, "t2")
    assert reply.answer is Answer.WAIT
    assert 50_000 < int(reply.value) <= 60_000
    assert await harness.pending() == 1
    second = await harness.again(lease, "t2")
    assert second.attempt == 2
    assert await harness.types(lease.job_id) == [b"queued", b"running", b"retry", b"running"]
    assert await harness.status(lease.job_id) == b"running"
    await harness.retry(second, 0)  # without a delay at once
    reply = await harness.begin_next(lease, "t3")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 3)


@pytest.mark.parametrize(("delay_ms", "seconds"), [(0, 0), (1, 1), (7_200_000, 7200)])
async def test_keys_outlive_the_delay(harness: StoreHarness, delay_ms: int, seconds: int) -> None:
    lease = await harness.running(ttl_s=90)
    await harness.retry(lease, delay_ms)
    await harness.check_ttls(lease.job_id, 90 + seconds)
    # Calls in between do not shorten it.
    await harness.begin_next(lease, "t2")
    await harness.renew(lease)
    await harness.emit(lease, 1, [note("late")])
    if delay_ms > 1000:
        assert await harness.client.ttl(harness.keys.job(lease.job_id)) > delay_ms // 1000
    assert await harness.without_ttl() == []


async def test_a_retried_message_stays_pending_but_not_idle(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.claim_for("c9", lease.message_id, 90_000)
    await harness.retry(lease, 5000)
    entry = await harness.pending_entry()
    assert (entry["consumer"], entry["times_delivered"]) == (b"c1", 1)
    assert entry["time_since_delivered"] < 60_000


async def test_a_retry_with_a_cancel_request_ends_the_job(harness: StoreHarness) -> None:
    lease = await harness.running(ttl_s=90)
    assert (await harness.cancel(lease.job_id)).answer is Answer.CANCELING
    unsent = {"first": 1, "events": [note("a")]}
    assert await harness.retry(lease, 7_200_000, b'{"kind":"why"}', **unsent) is Answer.CANCELED
    job = await harness.job(lease.job_id)
    assert (job[b"status"], job[b"error"], len(job)) == (b"canceled", b'{"kind":"why"}', 9)
    types = await harness.types(lease.job_id)
    assert types == [b"queued", b"running", b"canceling", b"message", b"canceled"]
    assert (await harness.events(lease.job_id))[-1][b"step"] == b"worker.cancel"
    assert await harness.pending() == 0
    assert not await harness.held(lease.job_id)
    assert (await harness.store.counts()).ended == 1
    await harness.check_ttls(lease.job_id, 90, "job")
    async with harness.unchanged():
        # A repeat can only see that the job has ended; the attempt is over either way.
        assert await harness.retry(lease, 5000, **unsent) is Answer.LOST
    await harness.writes_nothing(lease)


# -- errors of several attempts -------------------------------------------------------------------


async def failed_twice(harness: StoreHarness, **changes: object) -> Lease:
    """A job whose third attempt is running."""
    first = await harness.running(**changes)
    await harness.retry(first, 0, b'{"kind":"first"}')
    second = await harness.again(first, "t2")
    await harness.retry(second, 0, b'{"kind":"second"}')
    return await harness.again(second, "t3")


async def test_a_dead_letter_has_the_first_and_the_last_error(harness: StoreHarness) -> None:
    third = await failed_twice(harness)
    assert third.attempt == 3
    held = await harness.held(third.job_id)
    assert held[b"first_error"] == b'{"kind":"first"}'
    assert held[b"last_error"] == b'{"kind":"second"}'
    assert await harness.finish(third, GIVEN_UP) is Answer.OK
    [letter] = await harness.letters()
    assert (letter.reason, letter.attempts) == ("attempts_exhausted", 3)
    assert (letter.job_id, letter.message_id) == (third.job_id, third.message_id)
    assert (letter.first_error, letter.last_error) == (b'{"kind":"first"}', FAILED.error)
    fields = {"job_id": third.job_id, "task": "chat", "payload": '{"text":"hello"}'}
    assert letter.message_fields() == fields
    async with harness.unchanged():  # one dead letter
        assert await harness.finish(third, GIVEN_UP) is Answer.ALREADY
    assert await harness.pending() == 0
    # Also if the last attempt ended with an expired lease.
    third = await failed_twice(harness, max_attempts=3)
    await harness.expire(third)
    assert (await harness.begin_next(third, "t4")).answer is Answer.EXHAUSTED
    letter = (await harness.letters())[0]
    assert (letter.first_error, letter.attempts) == (b'{"kind":"first"}', 3)
    assert json.loads(letter.last_error)["kind"] == "attempts_exhausted"
    assert (await harness.job(third.job_id))[b"error"] == letter.last_error


async def test_a_single_failure_is_the_first_and_the_last_error(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.finish(lease, GIVEN_UP)
    [letter] = await harness.letters()
    assert (letter.first_error, letter.last_error) == (FAILED.error, FAILED.error)
    assert letter.attempts == 1
    for ending in (DONE, FAILED):  # other ends write no dead letter
        await harness.finish(await failed_twice(harness), ending)
    assert len(await harness.letters()) == 1


@pytest.mark.real_redis
async def test_an_invalid_payload_is_kept_in_the_dead_letter(harness: StoreHarness) -> None:
    """A third-party payload need not be valid UTF-8; its dead letter must be readable."""
    lease = await harness.running(payload=b'\xff\x00"\\\n/\xc3\xa4')
    await harness.finish(lease, GIVEN_UP)
    [letter] = await harness.letters()
    assert letter.message_fields()["job_id"] == lease.job_id
    assert letter.message_fields()["task"] == "chat"


@pytest.mark.parametrize("lease_ms", [1, 30_000, LEASE_MAX_MS])
async def test_anyone_may_claim_a_released_message(harness: StoreHarness, lease_ms: int) -> None:
    lease = await harness.running()
    assert await harness.autoclaim("c2", 30_000) == []
    await harness.release(lease)
    assert (await harness.pending_entry())["times_delivered"] == 1
    assert await harness.autoclaim("c2", lease_ms) == [lease.message_id]
    assert await harness.release(lease) is Answer.OK  # a repeat does not take the message back
    entry = await harness.pending_entry()
    assert entry["consumer"] == b"c2"
    assert entry["time_since_delivered"] < 60_000
    reply = await harness.begin_next(lease, "t2")
    assert (reply.answer, int(reply.value), int(reply.more[1])) == (Answer.RUN, 2, 1)


async def test_retries_and_expired_leases_count_and_releases_do_not(harness: StoreHarness) -> None:
    lease = await harness.running(max_attempts=2)
    for number in range(2, 12):
        assert await harness.release(lease) is Answer.OK
        lease = await harness.again(lease, f"t{number}")
    assert lease.attempt == 11
    assert (await harness.held(lease.job_id))[b"released"] == b"10"
    await harness.retry(lease)
    second = await harness.again(lease, "t12")
    await harness.retry(second)
    reply = await harness.begin_next(lease, "t13")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, 12)
    assert (await harness.types(lease.job_id))[-1] == b"error"
    assert await harness.pending() == 0
    lease = await harness.running(max_attempts=1)
    assert await harness.release(lease) is Answer.OK
    second = await harness.again(lease, "t2")
    await harness.expire(second)
    reply = await harness.begin_next(lease, "last")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, 2)
    assert await harness.pending() == 0


async def test_a_release_clears_a_delay_but_restores_no_message(harness: StoreHarness) -> None:
    first = await harness.running()
    await harness.retry(first, 60_000)
    second = await harness.again(first, "t2")
    await harness.release(second)
    assert (await harness.begin_next(first, "t3")).answer is Answer.RUN
    lease = await harness.running("u1")
    await harness.client.xack(harness.keys.queue, "workers", lease.message_id)
    assert await harness.release(lease) is Answer.OK
    assert await harness.pending() == 1  # that of the other job
