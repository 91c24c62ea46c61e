"""A task limited across workers: no more live leases than slots, and no slot lost for long."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.queue import Answer
from common.jobs.store import Claim, Lease
from tests.common.kit import DONE, FAILED, GIVEN_UP, Scene


def running_key(scene: Scene) -> str:
    return scene.keys.running("chat")


async def places_taken(scene: Scene) -> list[str]:
    return [member.decode() for member in await scene.client.zrange(running_key(scene), 0, -1)]


async def let_the_lease_run_out(scene: Scene, lease: Lease) -> None:
    """Let time pass: the deadline in the lease, and the one in the running set."""
    await scene.expire(lease)
    await scene.client.zadd(running_key(scene), {lease.job_id: 1}, xx=True)


async def place_is_free(scene: Scene) -> None:
    await scene.running_limited("next", slots=1)


async def test_a_slot_is_held_until_the_lease_expires(scene: Scene) -> None:
    lease = await scene.running_limited()
    deadline = (await scene.held(lease.job_id))[b"deadline_ms"]
    assert await scene.client.zscore(running_key(scene), lease.job_id) == int(deadline)
    left_ms = await scene.client.pttl(running_key(scene))
    assert scene.worker.lease_ms < left_ms <= 2 * scene.worker.lease_ms


async def test_without_a_slot_nothing_is_written(scene: Scene) -> None:
    await scene.running_limited()
    job_id, message_id = await scene.waiting()
    before = await scene.snapshot()
    for _ in range(2):
        reply = await scene.begin_limited(job_id, message_id, "t2", 1)
        assert reply == (Answer.LIMITED, None, ())
    assert await scene.snapshot() == before
    assert await scene.pending() == 2


async def test_the_limit_is_never_exceeded(scene: Scene) -> None:
    await scene.group()
    jobs = await scene.post(12)
    messages = await scene.take(12)
    claims = [
        Claim(job, message, f"t-{job}", max_running=5) for job, message in zip(jobs, messages)
    ]
    limits = {claim.token: running_key(scene) for claim in claims}
    outcomes = await scene.store.begin(claims, scene.worker, limits)
    assert [outcome.answer for outcome in outcomes] == [Answer.RUN] * 5 + [Answer.LIMITED] * 7
    assert await places_taken(scene) == sorted(jobs[:5])
    # The same holds for many clients at once.
    outcomes = await asyncio.gather(
        *(
            scene.begin_limited(job, message, f"u-{job}", 8)
            for job, message in zip(jobs[5:], messages[5:])
        )
    )
    answers = [outcome.answer for outcome in outcomes]
    assert answers == [Answer.RUN] * 3 + [Answer.LIMITED] * 4


@pytest.mark.parametrize("ending", [DONE, FAILED, GIVEN_UP], ids=["done", "error", "dead"])
async def test_the_end_frees_the_slot(scene: Scene, ending: object) -> None:
    lease = await scene.running_limited()
    assert await scene.finish(lease, ending) is Answer.OK
    assert await places_taken(scene) == []
    await place_is_free(scene)
    # A repeat after a lost reply must not free the slot of the next job.
    assert await scene.finish(lease, ending) is Answer.ALREADY
    assert len(await places_taken(scene)) == 1


@pytest.mark.parametrize("flagged", [False, True], ids=["retry", "canceled"])
async def test_a_retry_frees_the_slot(scene: Scene, flagged: bool) -> None:
    lease = await scene.running_limited()
    if flagged:
        await scene.cancel(lease.job_id)
    answer = await scene.retry(lease, 60_000)
    assert answer is (Answer.CANCELED if flagged else Answer.OK)
    assert await places_taken(scene) == []
    await place_is_free(scene)
    await scene.retry(lease, 60_000)
    assert len(await places_taken(scene)) == 1


async def test_a_release_frees_the_slot(scene: Scene) -> None:
    lease = await scene.running_limited()
    assert await scene.release(lease) is Answer.OK
    assert await places_taken(scene) == []
    await place_is_free(scene)
    await scene.release(lease)
    assert len(await places_taken(scene)) == 1


async def test_an_expired_lease_frees_the_slot(scene: Scene) -> None:
    silent = await scene.running_limited()
    await let_the_lease_run_out(scene, silent)
    heir = await scene.running_limited("t2")
    assert await places_taken(scene) == [heir.job_id]


async def test_a_jobs_own_slot_does_not_block_its_next_attempt(scene: Scene) -> None:
    silent = await scene.running_limited()
    await let_the_lease_run_out(scene, silent)
    reply = await scene.begin_limited(silent.job_id, silent.message_id, "t2", 1)
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 2)
    assert await places_taken(scene) == [silent.job_id]


async def test_renewals_keep_the_slot(scene: Scene) -> None:
    lease = await scene.running_limited()
    await scene.client.zadd(running_key(scene), {lease.job_id: await scene.now_ms() + 50})
    await scene.client.pexpire(running_key(scene), 5000)
    assert (await scene.renew(lease)).answer is Answer.OK
    deadline = (await scene.held(lease.job_id))[b"deadline_ms"]
    assert await scene.client.zscore(running_key(scene), lease.job_id) == int(deadline)
    assert await scene.client.pttl(running_key(scene)) > scene.worker.lease_ms
    job_id, message_id = await scene.waiting()
    assert (await scene.begin_limited(job_id, message_id, "t2", 1)).answer is Answer.LIMITED


async def test_a_renewal_restores_a_lost_slot(scene: Scene) -> None:
    """The set was deleted: running jobs are added again with their next renewal."""
    lease = await scene.running_limited()
    await scene.client.delete(running_key(scene))
    await scene.renew(lease)
    assert await places_taken(scene) == [lease.job_id]
    assert await scene.client.pttl(running_key(scene)) > 0


async def test_a_finished_attempt_takes_no_slot(scene: Scene) -> None:
    zombie = await scene.running_limited()
    await let_the_lease_run_out(scene, zombie)
    reply = await scene.begin(zombie.job_id, zombie.message_id, "t2")
    heir = Lease(zombie.job_id, zombie.message_id, int(reply.value), "t2")
    await scene.finish(heir)
    await scene.client.delete(running_key(scene))
    assert (await scene.renew(zombie)).answer is Answer.LOST
    assert await places_taken(scene) == []


async def test_a_repeated_begin_extends_slot_and_lease(scene: Scene) -> None:
    """Its reply was lost. It extends the lease, so it must extend the slot too: otherwise another
    job would get the slot while the lease is live."""
    lease = await scene.running_limited()
    soon = await scene.now_ms() + 10_000
    await scene.client.hset(scene.keys.lease(lease.job_id), "deadline_ms", str(soon))
    await scene.client.zadd(running_key(scene), {lease.job_id: soon})
    reply = await scene.begin_limited(lease.job_id, lease.message_id, lease.token, 1)
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    deadline = int((await scene.held(lease.job_id))[b"deadline_ms"])
    assert deadline > soon
    assert await scene.client.zscore(running_key(scene), lease.job_id) == deadline


async def test_a_short_lease_does_not_end_the_slots_of_long_ones(scene: Scene) -> None:
    """Workers may be configured differently; the set must outlive the longest lease in it."""
    await scene.running_limited("t1", slots=2)
    long_ms = scene.worker.lease_ms
    scene.worker = scene.worker._replace(lease_ms=1000)
    short = await scene.running_limited("t2", slots=2)
    assert await scene.client.pttl(running_key(scene)) >= long_ms - 5000
    await scene.renew(short)
    assert await scene.client.pttl(running_key(scene)) >= long_ms - 5000


async def test_busy_waiting_and_ended_jobs_take_no_slot(scene: Scene) -> None:
    busy = await scene.running("t1")
    retried = await scene.running("t2")
    await scene.retry(retried, 60_000)
    ended = await scene.running("t3")
    await scene.finish(ended)
    expected = (
        (busy, Answer.BUSY),
        (retried, Answer.WAIT),
        (ended, Answer.TERMINAL),
    )
    for lease, answer in expected:
        reply = await scene.begin_limited(lease.job_id, lease.message_id, "u", 1)
        assert reply.answer is answer
    assert (await scene.begin_limited("nobody", "1-1", "u", 1)).answer is Answer.MISSING
    assert not await scene.client.exists(running_key(scene))


async def test_an_exhausted_or_canceled_job_needs_no_slot(scene: Scene) -> None:
    """Otherwise its end would wait for a slot."""
    flagged = await scene.running("t1")
    await scene.cancel(flagged.job_id)
    await scene.expire(flagged)
    exhausted = await scene.running("t2", max_attempts=1)
    await scene.expire(exhausted)
    await scene.running_limited("t3")
    reply = await scene.begin_limited(flagged.job_id, flagged.message_id, "u1", 1)
    assert reply.answer is Answer.TERMINAL
    reply = await scene.begin_limited(exhausted.job_id, exhausted.message_id, "u2", 1)
    assert reply.answer is Answer.EXHAUSTED
    assert len(await places_taken(scene)) == 1


async def test_each_task_has_its_own_slots(scene: Scene) -> None:
    await scene.running_limited("t1")
    job_id, message_id = await scene.waiting(task="plan")
    claim = Claim(job_id, message_id, "t2", max_running=1)
    [reply] = await scene.store.begin([claim], scene.worker, {"t2": scene.keys.running("plan")})
    assert reply.answer is Answer.RUN
    assert await places_taken(scene) != [job_id]


async def test_limited_and_other_claims_in_one_call(scene: Scene) -> None:
    """A record has three or four keys; its neighbours must not be misread."""
    await scene.group()
    jobs = await scene.post(6)
    messages = await scene.take(6)
    claims = [
        Claim(job, message, f"t{number}", max_running=1 if number % 2 else "")
        for number, (job, message) in enumerate(zip(jobs, messages))
    ]
    limits = {claim.token: running_key(scene) for claim in claims[1::2]}
    outcomes = await scene.store.begin(claims, scene.worker, limits)
    assert [outcome.answer for outcome in outcomes] == [
        *(Answer.RUN, Answer.RUN, Answer.RUN),
        *(Answer.LIMITED, Answer.RUN, Answer.LIMITED),
    ]
    assert await places_taken(scene) == [jobs[1]]
    leases = [
        Lease(job, message, 1, claim.token, limits.get(claim.token, ""))
        for job, message, claim in zip(jobs[:3], messages, claims)
    ]
    assert await asyncio.gather(*(scene.finish(lease) for lease in leases)) == [Answer.OK] * 3
    assert await places_taken(scene) == []
