"""RETRY: another attempt later with the same message; the failed attempt writes nothing more."""

from __future__ import annotations

import json

import pytest

from common.contracts.queue import Answer
from common.jobs.store import Lease
from tests.common.kit import DONE, FAILED, GIVEN_UP, WHY, Scene, note


async def test_ok_queues_the_job_again_and_keeps_its_message(scene: Scene) -> None:
    lease = await scene.running()
    before = await scene.job(lease.job_id)
    assert await scene.retry(lease, 5000, b'{"kind":"first"}') is Answer.OK
    after = await scene.job(lease.job_id)
    assert after.pop(b"status") == b"queued"
    updated = after.pop(b"updated_ts")
    assert int(updated) >= int(before.pop(b"updated_ts"))
    before.pop(b"status")
    assert after == before  # neither result nor error yet
    assert (await scene.events(lease.job_id))[2:] == [
        {b"type": b"retry", b"ts": updated, b"step": b"worker.retry", b"data": WHY}
    ]
    held = await scene.held(lease.job_id)
    assert held[b"attempt"] == b"1"
    assert held[b"deadline_ms"] == b"0"
    assert held[b"message_id"] == lease.message_id.encode()
    assert int(held[b"not_before_ms"]) == int(updated) + 5000
    assert await scene.pending() == 1
    assert await scene.client.xlen(scene.keys.queue) == 1
    assert (await scene.store.counts()).ended == 0
    assert await scene.letters() == []


async def test_a_repeat_after_a_lost_reply_changes_nothing(scene: Scene) -> None:
    lease = await scene.running()
    unsent = {"first": 1, "events": [note("a")]}
    assert await scene.retry(lease, 5000, **unsent) is Answer.OK
    before = await scene.snapshot()
    for _ in range(2):
        assert await scene.retry(lease, 9000, b'{"kind":"late"}', **unsent) is Answer.OK
    assert await scene.snapshot() == before
    assert await scene.types(lease.job_id) == [b"queued", b"running", b"message", b"retry"]


async def test_a_repeat_while_the_next_attempt_runs_is_lost(scene: Scene) -> None:
    first = await scene.running()
    await scene.retry(first)
    second = await scene.again(first, "t2")
    before = await scene.snapshot()
    assert await scene.retry(first) is Answer.LOST
    assert await scene.snapshot() == before
    assert await scene.finish(second) is Answer.OK


async def test_the_failed_attempt_writes_nothing_more(scene: Scene) -> None:
    first = await scene.running()
    await scene.retry(first, 5000)
    await scene.writes_nothing(first)
    # Knowing the format of the spent token does not help either.
    spent = first._replace(token=(await scene.held(first.job_id))[b"token"].decode())
    assert spent.token != first.token
    second = await scene.again(first, "t2")
    await scene.writes_nothing(first)
    await scene.writes_nothing(spent)
    assert await scene.finish(second) is Answer.OK
    await scene.writes_nothing(first)


async def test_the_next_attempt_waits_for_the_delay(scene: Scene) -> None:
    lease = await scene.running()
    await scene.retry(lease, 60_000)
    before = await scene.snapshot()
    reply = await scene.begin(lease.job_id, lease.message_id, "t2")
    assert reply.answer is Answer.WAIT
    assert 50_000 < int(reply.value) <= 60_000
    assert await scene.snapshot() == before
    assert await scene.pending() == 1
    second = await scene.again(lease, "t2")
    assert second.attempt == 2
    assert await scene.types(lease.job_id) == [b"queued", b"running", b"retry", b"running"]
    assert (await scene.job(lease.job_id))[b"status"] == b"running"


async def test_without_delay_the_next_attempt_may_begin_at_once(scene: Scene) -> None:
    lease = await scene.running()
    await scene.retry(lease, 0)
    reply = await scene.begin(lease.job_id, lease.message_id, "t2")
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 2)


@pytest.mark.parametrize(("delay_ms", "seconds"), [(0, 0), (1, 1), (7_200_000, 7200)])
async def test_the_keys_outlive_the_delay(scene: Scene, delay_ms: int, seconds: int) -> None:
    lease = await scene.running(ttl_s=90)
    await scene.retry(lease, delay_ms)
    for key in (scene.keys.job, scene.keys.events, scene.keys.lease):
        assert 80 < await scene.client.ttl(key(lease.job_id)) - seconds <= 90
    # Calls in between do not shorten it.
    await scene.begin(lease.job_id, lease.message_id, "t2")
    await scene.renew(lease)
    await scene.emit(lease, 1, [note("late")])
    if delay_ms > 1000:
        assert await scene.client.ttl(scene.keys.job(lease.job_id)) > delay_ms // 1000
    assert await scene.without_ttl() == []


async def test_the_message_stays_pending_with_a_fresh_idle_time(scene: Scene) -> None:
    lease = await scene.running()
    await scene.claim_for("c9", lease.message_id, 90_000)
    await scene.retry(lease, 5000)
    entry = await scene.pending_entry()
    assert entry["consumer"] == b"c1"
    assert entry["time_since_delivered"] < 60_000
    assert entry["times_delivered"] == 1


async def test_unsent_events_come_before_the_retry_once(scene: Scene) -> None:
    lease = await scene.running()
    await scene.emit(lease, 1, [note("a")])
    await scene.retry(lease, first=1, events=[note("a"), note("b")])
    data = [event[b"data"] for event in await scene.events(lease.job_id)]
    assert data[2:] == [b'{"text":"a"}', b'{"text":"b"}', WHY]
    second = await scene.again(lease, "t2")
    await scene.finish(second, first=1, events=[note("c")])
    data = [event[b"data"] for event in await scene.events(lease.job_id)]
    assert data[-2:] == [b'{"text":"c"}', DONE.data]


async def test_lost_if_another_attempt_took_over(scene: Scene) -> None:
    zombie = await scene.running()
    heir = await scene.take_over(zombie)
    before = await scene.snapshot()
    assert await scene.retry(zombie, first=1, events=[note("z")]) is Answer.LOST
    assert await scene.retry(zombie._replace(attempt=2)) is Answer.LOST
    assert await scene.retry(zombie._replace(token="t2")) is Answer.LOST
    assert await scene.snapshot() == before
    assert await scene.finish(heir) is Answer.OK
    assert await scene.retry(heir) is Answer.LOST


async def test_lost_if_a_third_party_ended_the_job(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.hset(scene.keys.job(lease.job_id), "status", "done")
    before = await scene.snapshot()
    assert await scene.retry(lease) is Answer.LOST
    assert await scene.snapshot() == before


async def test_an_expired_lease_that_was_not_taken_may_still_retry(scene: Scene) -> None:
    lease = await scene.running()
    await scene.expire(lease)
    assert await scene.retry(lease) is Answer.OK


async def test_gone_acks_and_creates_no_key(scene: Scene) -> None:
    lease = await scene.running()
    gone = [key(lease.job_id) for key in (scene.keys.job, scene.keys.events, scene.keys.lease)]
    await scene.client.delete(*gone)
    for _ in range(2):
        assert await scene.retry(lease, 5000) is Answer.GONE
    assert await scene.pending() == 0
    assert await scene.client.exists(*gone) == 0


async def test_a_job_with_a_cancel_request_ends_instead(scene: Scene) -> None:
    lease = await scene.running(ttl_s=90)
    assert (await scene.cancel(lease.job_id)).answer is Answer.CANCELING
    unsent = {"first": 1, "events": [note("a")]}
    assert await scene.retry(lease, 7_200_000, b'{"kind":"why"}', **unsent) is Answer.CANCELED
    job = await scene.job(lease.job_id)
    assert (job[b"status"], job[b"error"]) == (b"canceled", b'{"kind":"why"}')
    assert len(job) == 9
    types = await scene.types(lease.job_id)
    assert types == [b"queued", b"running", b"canceling", b"message", b"canceled"]
    assert (await scene.events(lease.job_id))[-1][b"step"] == b"worker.cancel"
    assert await scene.pending() == 0
    assert not await scene.client.exists(scene.keys.lease(lease.job_id))
    assert (await scene.store.counts()).ended == 1
    assert 80 < await scene.client.ttl(scene.keys.job(lease.job_id)) <= 90
    before = await scene.snapshot()
    # A repeat can only see that the job has ended; the attempt is over either way.
    assert await scene.retry(lease, 5000, **unsent) is Answer.LOST
    assert await scene.snapshot() == before
    await scene.writes_nothing(lease)


# -- errors of several attempts -------------------------------------------------------------------


async def failed_twice(scene: Scene, **changes: object) -> Lease:
    """A job whose third attempt is running."""
    first = await scene.running(**changes)
    await scene.retry(first, 0, b'{"kind":"first"}')
    second = await scene.again(first, "t2")
    await scene.retry(second, 0, b'{"kind":"second"}')
    return await scene.again(second, "t3")


async def test_the_first_error_is_kept_and_the_last_is_the_latest(scene: Scene) -> None:
    third = await failed_twice(scene)
    assert third.attempt == 3
    held = await scene.held(third.job_id)
    assert held[b"first_error"] == b'{"kind":"first"}'
    assert held[b"last_error"] == b'{"kind":"second"}'


async def test_a_dead_letter_has_the_first_and_the_last_error(scene: Scene) -> None:
    third = await failed_twice(scene)
    assert await scene.finish(third, GIVEN_UP) is Answer.OK
    [letter] = await scene.letters()
    assert letter.reason == "attempts_exhausted"
    assert (letter.job_id, letter.message_id) == (third.job_id, third.message_id)
    assert letter.attempts == 3
    assert (letter.first_error, letter.last_error) == (b'{"kind":"first"}', FAILED.error)
    assert letter.message_fields() == {
        "job_id": third.job_id,
        "task": "chat",
        "payload": '{"text":"hello"}',
    }
    before = await scene.snapshot()
    assert await scene.finish(third, GIVEN_UP) is Answer.ALREADY
    assert await scene.snapshot() == before  # one dead letter
    assert await scene.pending() == 0


async def test_a_single_failure_is_the_first_and_the_last_error(scene: Scene) -> None:
    lease = await scene.running()
    await scene.finish(lease, GIVEN_UP)
    [letter] = await scene.letters()
    assert (letter.first_error, letter.last_error) == (FAILED.error, FAILED.error)
    assert letter.attempts == 1


@pytest.mark.parametrize("ending", [DONE, FAILED])
async def test_other_ends_write_no_dead_letter(scene: Scene, ending: object) -> None:
    third = await failed_twice(scene)
    await scene.finish(third, ending)
    assert await scene.letters() == []


async def test_an_expired_lease_after_retries_keeps_the_first_error(scene: Scene) -> None:
    third = await failed_twice(scene, max_attempts=3)
    await scene.expire(third)
    reply = await scene.begin(third.job_id, third.message_id, "t4")
    assert reply.answer is Answer.EXHAUSTED
    [letter] = await scene.letters()
    assert letter.first_error == b'{"kind":"first"}'
    assert json.loads(letter.last_error)["kind"] == "attempts_exhausted"
    assert letter.attempts == 3
    assert (await scene.job(third.job_id))[b"error"] == letter.last_error


async def test_retries_count_as_attempts(scene: Scene) -> None:
    lease = await scene.running(max_attempts=2)
    await scene.retry(lease)
    second = await scene.again(lease, "t2")
    await scene.retry(second)
    reply = await scene.begin(lease.job_id, lease.message_id, "t3")
    assert (reply.answer, int(reply.value)) == (Answer.EXHAUSTED, 2)
    assert (await scene.types(lease.job_id))[-1] == b"error"


async def test_an_invalid_payload_is_kept_in_the_dead_letter(real_scene: Scene) -> None:
    """A third-party payload need not be valid UTF-8; its dead letter must be readable."""
    scene = real_scene
    lease = await scene.running(payload=b'\xff\x00"\\\n/\xc3\xa4')
    await scene.finish(lease, GIVEN_UP)
    [letter] = await scene.letters()
    assert letter.message_fields()["job_id"] == lease.job_id
    assert letter.message_fields()["task"] == "chat"
