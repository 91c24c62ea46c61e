"""CANCEL: a job that is not running ends at once, a running one is asked to end; it ends once."""

from __future__ import annotations

import asyncio

import pytest

from sluice.common.contracts.queue import Answer
from tests.support.store.jobs import DONE, FAILED, GIVEN_UP, WHY, StoreHarness, note

each_end = pytest.mark.parametrize(
    "ending", [DONE, FAILED, GIVEN_UP], ids=["done", "error", "dead"]
)
both = pytest.mark.parametrize("hand_back", ["retry", "release"])


async def has_ended(harness: StoreHarness, job_id: str, step: bytes = b"gateway.cancel") -> None:
    """Check that the job was canceled once, completely."""
    job = await harness.job(job_id)
    assert len(job) == 9
    assert (job[b"status"], job[b"result"]) == (b"canceled", b"")
    events = await harness.events(job_id)
    last = events[-1]
    assert (last[b"type"], last[b"ts"], last[b"step"]) == (b"canceled", job[b"updated_ts"], step)
    assert [event[b"type"] for event in events].count(b"canceled") == 1
    assert not await harness.held(job_id)
    assert not await harness.client.zscore(harness.keys.scheduled, job_id)
    assert await harness.without_ttl() == []


async def test_a_queued_job_ends_at_once(harness: StoreHarness) -> None:
    [job_id] = await harness.post(ttl_s=90)
    await harness.set_ttls(job_id, 5, "job", "events")
    assert await harness.cancel(job_id) == (Answer.CANCELED, None, ())
    await has_ended(harness, job_id)
    assert (await harness.data(job_id))[-1] == WHY
    await harness.check_ttls(job_id, 90, "job", "events")
    assert (await harness.store.counts()).ended == 1
    async with harness.unchanged():  # a repeat
        for _ in range(2):
            assert await harness.cancel(job_id) == (Answer.ALREADY, b"canceled", ())
    # Its message is still there: the worker that reads it only acks it.
    await harness.group()
    [message_id] = await harness.take()
    before = await harness.job(job_id), await harness.events(job_id)
    assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    assert (await harness.job(job_id), await harness.events(job_id)) == before
    assert await harness.pending() == 0


async def test_a_read_or_scheduled_job_ends_without_beginning(harness: StoreHarness) -> None:
    job_id, message_id = await harness.waiting(max_attempts=3, options=b'{"timeout_s":1}')
    assert (await harness.cancel(job_id)).answer is Answer.CANCELED
    await has_ended(harness, job_id)
    assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    await has_ended(harness, job_id)
    assert await harness.pending() == 0
    [job_id] = await harness.post(delay_ms=60_000, schedule_limit=9, ttl_s=90)
    assert (await harness.cancel(job_id)).answer is Answer.CANCELED
    await has_ended(harness, job_id)
    assert await harness.types(job_id) == [b"queued", b"scheduled", b"canceled"]
    assert await harness.client.xlen(harness.keys.queue) == 1  # that of the other job
    await harness.check_ttls(job_id, 90, "job")
    [outcome] = await harness.queue.promote([job_id])
    assert outcome.answer is Answer.ALREADY


@both
async def test_a_job_between_attempts_is_ended(harness: StoreHarness, hand_back: str) -> None:
    lease = await harness.running()
    await (harness.retry(lease, 3_600_000) if hand_back == "retry" else harness.release(lease))
    assert (await harness.cancel(lease.job_id)).answer is Answer.CANCELED
    await has_ended(harness, lease.job_id)
    assert await harness.pending() == 0
    assert await harness.letters() == []
    await harness.writes_nothing(lease)
    async with harness.unchanged():
        assert await harness.retry(lease, 5) is Answer.LOST
        assert await harness.release(lease) is Answer.LOST


@pytest.mark.parametrize("stored", [b"0", b"soon", None])
async def test_an_invalid_ttl_is_the_default(harness: StoreHarness, stored: bytes | None) -> None:
    lease = await harness.running()
    [job_id] = await harness.post()
    for name in (job_id, lease.job_id):
        await harness.client.hdel(harness.keys.job(name), "ttl_s")
        if stored is not None:
            await harness.client.hset(harness.keys.job(name), "ttl_s", stored)
        await harness.cancel(name)
        await harness.check_ttls(name, 600, "job", "events")


async def test_the_worker_of_a_running_job_is_notified(harness: StoreHarness) -> None:
    lease = await harness.running(ttl_s=90)
    held = await harness.held(lease.job_id)
    await harness.set_ttls(lease.job_id, 5)
    before = await harness.job(lease.job_id)
    assert await harness.cancel(lease.job_id) == (Answer.CANCELING, None, ())
    assert await harness.job(lease.job_id) == before
    event = (await harness.events(lease.job_id))[-1]
    ts = event.pop(b"ts")
    assert event == {b"type": b"canceling", b"step": b"gateway.cancel", b"data": WHY}
    flagged = await harness.held(lease.job_id)
    assert flagged.pop(b"cancel_ms") == ts
    assert flagged == held
    assert await harness.pending() == 1
    await harness.check_ttls(lease.job_id, 90)


async def test_repeated_requests_are_published_but_written_once(harness: StoreHarness) -> None:
    """On the control channel only for a running job."""
    control, hints = [
        await harness.listen(name) for name in (harness.keys.control, harness.keys.hints)
    ]
    lease = await harness.running()
    [queued] = await harness.post()
    for job_id in (queued, queued, "nobody", lease.job_id):
        await harness.cancel(job_id)
    async with harness.unchanged():
        for _ in range(2):
            assert (await harness.cancel(lease.job_id)).answer is Answer.CANCELING
    for _ in range(3):
        assert await asyncio.wait_for(control.get(), 5) == lease.job_id.encode()
    assert control.empty()
    hinted = []
    while queued.encode() not in hinted or hinted[-1] != lease.job_id.encode():
        hinted.append(await asyncio.wait_for(hints.get(), 5))


async def test_a_renewal_reports_the_request_too(harness: StoreHarness) -> None:
    lease = await harness.running()
    assert (await harness.renew(lease)).answer is Answer.OK
    await harness.cancel(lease.job_id)
    await harness.expire(lease)
    for _ in range(2):
        assert (await harness.renew(lease)).answer is Answer.CANCELING
    # It was renewed nevertheless.
    assert int((await harness.held(lease.job_id))[b"deadline_ms"]) > await harness.now_ms()
    assert (await harness.begin_next(lease, "t2")).answer is Answer.BUSY
    # A repeated BEGIN whose reply was lost still runs the attempt.
    reply = await harness.begin_next(lease, lease.token)
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    assert (await harness.renew(lease)).answer is Answer.CANCELING


async def test_a_job_may_emit_until_it_ends(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.cancel(lease.job_id)
    assert await harness.emit(lease, 1, [note("a")]) is Answer.OK
    canceled = DONE._replace(status="canceled", step="worker.cancel")
    assert await harness.finish(lease, canceled, first=2, events=[note("b")]) is Answer.OK
    types = await harness.types(lease.job_id)
    assert types == [b"queued", b"running", b"canceling", b"message", b"message", b"canceled"]
    assert (await harness.job(lease.job_id))[b"result"] == DONE.result
    assert await harness.pending() == 0
    await harness.writes_nothing(lease)


@pytest.mark.parametrize("first", ["canceled", "expired"])
async def test_an_expired_attempt_ends_when_claimed(harness: StoreHarness, first: str) -> None:
    """Until then it is only marked: a third-party worker may have taken it, and two ends must not
    happen."""
    lease = await harness.running()
    if first == "expired":
        await harness.expire(lease)
    for _ in range(2):
        assert (await harness.cancel(lease.job_id)).answer is Answer.CANCELING
    await harness.expire(lease)
    assert await harness.types(lease.job_id) == [b"queued", b"running", b"canceling"]
    assert await harness.pending() == 1
    assert (await harness.begin_next(lease, "t2")).answer is Answer.TERMINAL
    await has_ended(harness, lease.job_id, b"worker.cancel")
    assert (await harness.data(lease.job_id))[-1] == b'{"attempt":1}'
    assert await harness.pending() == 0
    async with harness.unchanged():
        assert (await harness.begin_next(lease, "t2")).answer is Answer.TERMINAL
    await harness.writes_nothing(lease)


async def run_by_third_party_worker(harness: StoreHarness, job_id: str) -> None:
    """As the contract requires: status, then event."""
    await harness.client.hset(harness.keys.job(job_id), "status", "running")
    event = {"type": "running", "ts": "1", "step": "worker.start", "data": '{"attempt":1}'}
    await harness.client.xadd(harness.keys.events(job_id), event)


@pytest.mark.parametrize("options", [{}, {"max_attempts": 3}], ids=["plain", "options"])
async def test_a_job_of_a_third_party_worker_is_only_marked(
    harness: StoreHarness, options: dict[str, object]
) -> None:
    """It may end the job at any time; an end by the script could make two."""
    job_id, message_id = await harness.waiting(**options)
    await run_by_third_party_worker(harness, job_id)
    for _ in range(2):
        assert (await harness.cancel(job_id)).answer is Answer.CANCELING
    assert await harness.types(job_id) == [b"queued", b"running", b"canceling"]
    assert await harness.status(job_id) == b"running"
    assert await harness.pending() == 1
    assert await harness.without_ttl() == []
    # The worker that takes it over ends it.
    assert (await harness.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    await has_ended(harness, job_id, b"worker.cancel")
    assert await harness.pending() == 0
    # It may have taken a released job: the rest of a lease belongs to no attempt.
    for number, give_back in enumerate((harness.retry, harness.release)):
        lease = await harness.running(f"t{number + 2}")
        await give_back(lease)
        await run_by_third_party_worker(harness, lease.job_id)
        assert (await harness.cancel(lease.job_id)).answer is Answer.CANCELING
        assert b"canceled" not in await harness.types(lease.job_id)


# -- ended or missing jobs, and races -------------------------------------------------------------


@each_end
async def test_ended_and_missing_jobs_stay_the_same(harness: StoreHarness, ending: object) -> None:
    lease = await harness.running()
    await harness.finish(lease, ending)
    async with harness.unchanged():
        for _ in range(2):
            reply = await harness.cancel(lease.job_id)
            assert (reply.answer, reply.value) == (Answer.ALREADY, ending.status.encode())
    await harness.client.delete(harness.keys.job(lease.job_id))
    async with harness.unchanged():
        for missing in ("nobody", lease.job_id):
            assert await harness.cancel(missing) == (Answer.MISSING, None, ())


@each_end
@pytest.mark.parametrize("expired", [False, True], ids=["", "expired"])
async def test_after_a_request_the_worker_decides_how_the_job_ends(
    harness: StoreHarness, ending: object, expired: bool
) -> None:
    lease = await harness.running()
    if expired:
        await harness.expire(lease)
    asked, answer = await asyncio.gather(
        harness.cancel(lease.job_id), harness.finish(lease, ending)
    )
    assert (asked.answer, answer) == (Answer.CANCELING, Answer.OK)
    status = ending.status.encode()
    assert (await harness.types(lease.job_id))[-2:] == [b"canceling", status]
    assert await harness.status(lease.job_id) == status
    assert await harness.pending() == 0
    assert (await harness.store.counts()).ended == 1
    # In the other order the job cannot be canceled.
    lease = await harness.running("t2")
    answer, asked = await asyncio.gather(
        harness.finish(lease, ending), harness.cancel(lease.job_id)
    )
    assert (answer, asked.answer, asked.value) == (Answer.OK, Answer.ALREADY, status)
    assert await harness.types(lease.job_id) == [b"queued", b"running", status]


@both
@pytest.mark.parametrize("first", ["cancel", "hand_back"])
async def test_concurrent_retry_or_release(
    harness: StoreHarness, hand_back: str, first: str
) -> None:
    lease = await harness.running()
    give = harness.retry(lease, 60_000) if hand_back == "retry" else harness.release(lease)
    ask = harness.cancel(lease.job_id)
    await asyncio.gather(*((ask, give) if first == "cancel" else (give, ask)))
    if await harness.status(lease.job_id) == b"queued":  # released with the request stored
        await harness.begin_next(lease, "t2")
    assert await harness.status(lease.job_id) == b"canceled"
    types = await harness.types(lease.job_id)
    assert types[-1] == b"canceled"
    assert types.count(b"canceled") == 1
    assert await harness.pending() == 0
