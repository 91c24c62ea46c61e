"""CANCEL: a job that is not running ends at once, a running one is asked to end; it ends once."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.queue import Answer
from tests.common.kit import DONE, FAILED, GIVEN_UP, WHY, Scene, note

ENDINGS = [DONE, FAILED, GIVEN_UP]


async def listen(scene: Scene, channel: str) -> asyncio.Queue[bytes]:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    line = scene.backend.wire(on_message=heard.put_nowait)
    await line.execute_command("SUBSCRIBE", channel)
    return heard


async def has_ended(scene: Scene, job_id: str, step: bytes = b"gateway.cancel") -> None:
    """Check that the job was canceled once, completely."""
    job = await scene.job(job_id)
    assert len(job) == 9
    assert (job[b"status"], job[b"result"]) == (b"canceled", b"")
    events = await scene.events(job_id)
    assert events[-1][b"type"] == b"canceled"
    assert events[-1][b"ts"] == job[b"updated_ts"]
    assert events[-1][b"step"] == step
    assert [event[b"type"] for event in events].count(b"canceled") == 1
    assert not await scene.client.exists(scene.keys.lease(job_id))
    assert not await scene.client.zscore(scene.keys.scheduled, job_id)
    assert await scene.without_ttl() == []


# -- not running ----------------------------------------------------------------------------------


async def test_a_queued_job_ends_at_once(scene: Scene) -> None:
    [job_id] = await scene.post(ttl_s=90)
    await scene.client.expire(scene.keys.job(job_id), 5)
    await scene.client.expire(scene.keys.events(job_id), 5)
    assert await scene.cancel(job_id) == (Answer.CANCELED, None, ())
    await has_ended(scene, job_id)
    assert (await scene.events(job_id))[-1][b"data"] == WHY
    for key in (scene.keys.job(job_id), scene.keys.events(job_id)):
        assert 80 < await scene.client.ttl(key) <= 90
    assert (await scene.store.counts()).ended == 1
    # Its message is still there: the worker that reads it only acks it.
    await scene.group()
    [message_id] = await scene.take()
    before = await scene.job(job_id), await scene.events(job_id)
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    assert (await scene.job(job_id), await scene.events(job_id)) == before
    assert await scene.pending() == 0


async def test_a_repeat_changes_nothing(scene: Scene) -> None:
    [job_id] = await scene.post()
    await scene.cancel(job_id)
    before = await scene.snapshot()
    for _ in range(2):
        assert await scene.cancel(job_id) == (Answer.ALREADY, b"canceled", ())
    assert await scene.snapshot() == before


async def test_a_job_with_options_ends_too(scene: Scene) -> None:
    [job_id] = await scene.post(max_attempts=3, options=b'{"timeout_s":1}')
    assert (await scene.cancel(job_id)).answer is Answer.CANCELED
    await has_ended(scene, job_id)


async def test_a_job_whose_message_was_read_ends_without_beginning(scene: Scene) -> None:
    job_id, message_id = await scene.waiting()
    assert (await scene.cancel(job_id)).answer is Answer.CANCELED
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    await has_ended(scene, job_id)
    assert await scene.pending() == 0


async def test_a_scheduled_job_ends_and_leaves_the_schedule(scene: Scene) -> None:
    [job_id] = await scene.post(delay_ms=60_000, schedule_limit=9, ttl_s=90)
    assert (await scene.cancel(job_id)).answer is Answer.CANCELED
    await has_ended(scene, job_id)
    assert await scene.types(job_id) == [b"queued", b"scheduled", b"canceled"]
    assert await scene.client.zcard(scene.keys.scheduled) == 0
    assert await scene.client.exists(scene.keys.queue) == 0
    assert 80 < await scene.client.ttl(scene.keys.job(job_id)) <= 90
    [outcome] = await scene.queue.promote([job_id])
    assert outcome.answer is Answer.ALREADY


@pytest.mark.parametrize("hand_back", ["retry", "release"])
async def test_between_attempts_a_job_ends_and_its_message_is_acked(
    scene: Scene, hand_back: str
) -> None:
    lease = await scene.running()
    if hand_back == "retry":
        await scene.retry(lease, 3_600_000)
    else:
        await scene.release(lease)
    assert (await scene.cancel(lease.job_id)).answer is Answer.CANCELED
    await has_ended(scene, lease.job_id)
    assert await scene.pending() == 0
    assert await scene.letters() == []
    await scene.writes_nothing(lease)
    before = await scene.snapshot()
    assert await scene.retry(lease, 5) is Answer.LOST
    assert await scene.release(lease) is Answer.LOST
    assert await scene.snapshot() == before


# -- running --------------------------------------------------------------------------------------


async def test_the_worker_of_a_running_job_is_notified(scene: Scene) -> None:
    lease = await scene.running(ttl_s=90)
    held = await scene.held(lease.job_id)
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        await scene.client.expire(key(lease.job_id), 5)
    before = await scene.job(lease.job_id)
    assert await scene.cancel(lease.job_id) == (Answer.CANCELING, None, ())
    assert await scene.job(lease.job_id) == before
    event = (await scene.events(lease.job_id))[-1]
    assert event == {
        b"type": b"canceling",
        b"ts": event[b"ts"],
        b"step": b"gateway.cancel",
        b"data": WHY,
    }
    flagged = await scene.held(lease.job_id)
    assert flagged.pop(b"cancel_ms") == event[b"ts"]
    assert flagged == held
    assert await scene.pending() == 1
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        assert 80 < await scene.client.ttl(key(lease.job_id)) <= 90


async def test_a_repeated_request_is_published_again_but_written_once(scene: Scene) -> None:
    lease = await scene.running()
    heard = await listen(scene, scene.keys.control)
    await scene.cancel(lease.job_id)
    before = await scene.snapshot()
    for _ in range(2):
        assert (await scene.cancel(lease.job_id)).answer is Answer.CANCELING
    assert await scene.snapshot() == before
    for _ in range(3):
        assert await asyncio.wait_for(heard.get(), 5) == lease.job_id.encode()
    assert heard.empty()


async def test_only_a_running_job_is_published(scene: Scene) -> None:
    heard = await listen(scene, scene.keys.control)
    running = await scene.running()
    [queued] = await scene.post()
    for job_id in (queued, queued, "nobody", running.job_id):
        await scene.cancel(job_id)
    assert await asyncio.wait_for(heard.get(), 5) == running.job_id.encode()
    assert heard.empty()


async def test_a_hint_is_published(scene: Scene) -> None:
    lease = await scene.running()
    heard = await listen(scene, scene.keys.hints)
    await scene.cancel(lease.job_id)
    assert await asyncio.wait_for(heard.get(), 5) == lease.job_id.encode()
    [job_id] = await scene.post()
    await scene.cancel(job_id)
    assert await asyncio.wait_for(heard.get(), 5) == job_id.encode()


async def test_a_renewal_reports_the_request_too(scene: Scene) -> None:
    lease = await scene.running()
    assert (await scene.renew(lease)).answer is Answer.OK
    await scene.cancel(lease.job_id)
    await scene.expire(lease)
    for _ in range(2):
        assert (await scene.renew(lease)).answer is Answer.CANCELING
    # It was renewed nevertheless.
    assert int((await scene.held(lease.job_id))[b"deadline_ms"]) > await scene.now_ms()
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.BUSY


async def test_a_job_may_emit_until_it_ends(scene: Scene) -> None:
    lease = await scene.running()
    await scene.cancel(lease.job_id)
    assert await scene.emit(lease, 1, [note("a")]) is Answer.OK
    canceled = DONE._replace(status="canceled", step="worker.cancel")
    assert await scene.finish(lease, canceled, first=2, events=[note("b")]) is Answer.OK
    types = await scene.types(lease.job_id)
    assert types == [*(b"queued", b"running", b"canceling", b"message", b"message", b"canceled")]
    assert (await scene.job(lease.job_id))[b"result"] == DONE.result
    assert await scene.pending() == 0
    await scene.writes_nothing(lease)


async def test_a_canceled_job_of_a_dead_worker_ends_when_claimed(scene: Scene) -> None:
    lease = await scene.running()
    await scene.cancel(lease.job_id)
    await scene.expire(lease)
    reply = await scene.begin(lease.job_id, lease.message_id, "t2")
    assert reply.answer is Answer.TERMINAL
    await has_ended(scene, lease.job_id, b"worker.cancel")
    assert (await scene.events(lease.job_id))[-1][b"data"] == b'{"attempt":1}'
    assert await scene.pending() == 0
    before = await scene.snapshot()
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.TERMINAL
    assert await scene.snapshot() == before
    await scene.writes_nothing(lease)


async def test_a_job_with_an_expired_lease_is_only_marked(scene: Scene) -> None:
    """A third-party worker may have taken it, and two ends must not happen. The worker that claims
    it ends it; until then its own worker may."""
    lease = await scene.running()
    await scene.expire(lease)
    for _ in range(2):
        assert (await scene.cancel(lease.job_id)).answer is Answer.CANCELING
    assert await scene.types(lease.job_id) == [b"queued", b"running", b"canceling"]
    assert await scene.pending() == 1
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.TERMINAL
    await has_ended(scene, lease.job_id, b"worker.cancel")
    assert await scene.pending() == 0
    await scene.writes_nothing(lease)


async def test_a_worker_with_an_expired_lease_may_end_its_job(scene: Scene) -> None:
    lease = await scene.running()
    await scene.expire(lease)
    answers = await asyncio.gather(scene.cancel(lease.job_id), scene.finish(lease))
    assert (answers[0].answer, answers[1]) == (Answer.CANCELING, Answer.OK)
    assert (await scene.types(lease.job_id))[-2:] == [b"canceling", b"done"]
    assert await scene.pending() == 0
    assert (await scene.store.counts()).ended == 1


async def test_a_repeated_begin_of_a_canceled_job_still_runs_it(scene: Scene) -> None:
    """Its reply was lost: the attempt runs, and the next renewal reports the request."""
    lease = await scene.running()
    await scene.cancel(lease.job_id)
    reply = await scene.begin(lease.job_id, lease.message_id, lease.token)
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    assert (await scene.renew(lease)).answer is Answer.CANCELING


# -- workers without leases -----------------------------------------------------------------------


async def run_by_third_party_worker(scene: Scene, job_id: str) -> None:
    """As the contract requires: status, then event."""
    await scene.client.hset(scene.keys.job(job_id), "status", "running")
    await scene.client.xadd(
        scene.keys.events(job_id),
        {"type": "running", "ts": "1", "step": "worker.start", "data": '{"attempt":1}'},
    )


@pytest.mark.parametrize("options", [{}, {"max_attempts": 3}], ids=["plain", "options"])
async def test_a_job_of_a_third_party_worker_is_only_marked(
    scene: Scene, options: dict[str, object]
) -> None:
    """It may end the job at any time; an end by the script could make two."""
    job_id, _ = await scene.waiting(**options)
    await run_by_third_party_worker(scene, job_id)
    for _ in range(2):
        assert (await scene.cancel(job_id)).answer is Answer.CANCELING
    assert await scene.types(job_id) == [b"queued", b"running", b"canceling"]
    assert (await scene.job(job_id))[b"status"] == b"running"
    assert await scene.pending() == 1
    assert await scene.without_ttl() == []


async def test_a_job_taken_over_from_a_third_party_ends_canceled(scene: Scene) -> None:
    job_id, message_id = await scene.waiting()
    await run_by_third_party_worker(scene, job_id)
    await scene.cancel(job_id)
    assert (await scene.begin(job_id, message_id, "t1")).answer is Answer.TERMINAL
    await has_ended(scene, job_id, b"worker.cancel")
    assert await scene.pending() == 0


@pytest.mark.parametrize("hand_back", ["retry", "release"])
async def test_a_third_party_worker_may_have_taken_a_released_job(
    scene: Scene, hand_back: str
) -> None:
    """The rest of the lease belongs to no attempt: its expiry means nothing."""
    lease = await scene.running()
    await (scene.retry(lease) if hand_back == "retry" else scene.release(lease))
    await run_by_third_party_worker(scene, lease.job_id)
    assert (await scene.cancel(lease.job_id)).answer is Answer.CANCELING
    assert b"canceled" not in await scene.types(lease.job_id)


# -- ended or missing jobs ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS, ids=["done", "error", "dead"])
async def test_already_returns_the_status(scene: Scene, ending: object) -> None:
    lease = await scene.running()
    await scene.finish(lease, ending)
    before = await scene.snapshot()
    for _ in range(2):
        reply = await scene.cancel(lease.job_id)
        assert (reply.answer, reply.value) == (Answer.ALREADY, ending.status.encode())
    assert await scene.snapshot() == before


async def test_missing_creates_no_key(scene: Scene) -> None:
    assert await scene.cancel("nobody") == (Answer.MISSING, None, ())
    assert await scene.snapshot() == {}


async def test_an_expired_job_is_missing(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.delete(scene.keys.job(lease.job_id))
    before = await scene.snapshot()
    assert (await scene.cancel(lease.job_id)).answer is Answer.MISSING
    assert await scene.snapshot() == before


# -- races ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS, ids=["done", "error", "dead"])
async def test_after_a_request_the_worker_decides_how_the_job_ends(
    scene: Scene, ending: object
) -> None:
    lease = await scene.running()
    answers = await asyncio.gather(scene.cancel(lease.job_id), scene.finish(lease, ending))
    assert (answers[0].answer, answers[1]) == (Answer.CANCELING, Answer.OK)
    types = await scene.types(lease.job_id)
    assert types[-2:] == [b"canceling", ending.status.encode()]
    assert (await scene.job(lease.job_id))[b"status"] == ending.status.encode()


async def test_a_finished_job_cannot_be_canceled(scene: Scene) -> None:
    lease = await scene.running()
    answers = await asyncio.gather(scene.finish(lease), scene.cancel(lease.job_id))
    assert answers[0] is Answer.OK
    assert (answers[1].answer, answers[1].value) == (Answer.ALREADY, b"done")
    assert await scene.types(lease.job_id) == [b"queued", b"running", b"done"]


@pytest.mark.parametrize("hand_back", ["retry", "release"])
@pytest.mark.parametrize("first", ["cancel", "hand_back"])
async def test_a_concurrent_retry_or_release(scene: Scene, hand_back: str, first: str) -> None:
    lease = await scene.running()
    give = scene.retry(lease, 60_000) if hand_back == "retry" else scene.release(lease)
    ask = scene.cancel(lease.job_id)
    await asyncio.gather(*((ask, give) if first == "cancel" else (give, ask)))
    if (await scene.job(lease.job_id))[b"status"] == b"queued":  # released with the request stored
        await scene.begin(lease.job_id, lease.message_id, "t2")
    assert (await scene.job(lease.job_id))[b"status"] == b"canceled"
    types = await scene.types(lease.job_id)
    assert types[-1] == b"canceled"
    assert types.count(b"canceled") == 1
    assert await scene.pending() == 0


async def test_twenty_concurrent_cancels_end_a_job_once(scene: Scene) -> None:
    [job_id] = await scene.post()
    replies = await asyncio.gather(*(scene.cancel(job_id) for _ in range(20)))
    assert [reply.answer for reply in replies] == [Answer.CANCELED] + [Answer.ALREADY] * 19
    await has_ended(scene, job_id)


@pytest.mark.parametrize("stored", [b"0", b"soon", None])
async def test_an_invalid_ttl_counts_as_the_default(scene: Scene, stored: bytes | None) -> None:
    lease = await scene.running()
    [job_id] = await scene.post()
    for name in (job_id, lease.job_id):
        if stored is None:
            await scene.client.hdel(scene.keys.job(name), "ttl_s")
        else:
            await scene.client.hset(scene.keys.job(name), "ttl_s", stored)
        await scene.cancel(name)
        assert 590 < await scene.client.ttl(scene.keys.job(name)) <= 600
        assert 590 < await scene.client.ttl(scene.keys.events(name)) <= 600
