"""A task limited across workers: no more live leases than slots, and no slot lost for long."""

from __future__ import annotations

import asyncio

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.store import Claim, Lease
from tests.support.store.jobs import DONE, FAILED, GIVEN_UP, StoreHarness


def running_key(harness: StoreHarness) -> str:
    return harness.keys.running("chat")


async def slots(harness: StoreHarness) -> list[str]:
    """The jobs that have a slot."""
    return [member.decode() for member in await harness.client.zrange(running_key(harness), 0, -1)]


async def let_the_lease_run_out(harness: StoreHarness, lease: Lease) -> None:
    """Let time pass: the deadline in the lease, and the one in the running set."""
    await harness.expire(lease)
    await harness.client.zadd(running_key(harness), {lease.job_id: 1}, xx=True)


async def slot_ends_with_lease(harness: StoreHarness, lease: Lease) -> int:
    deadline = int((await harness.held(lease.job_id))[b"deadline_ms"])
    assert await harness.client.zscore(running_key(harness), lease.job_id) == deadline
    return deadline


async def test_a_slot_is_held_until_the_lease_expires(harness: StoreHarness) -> None:
    lease = await harness.running_limited()
    await slot_ends_with_lease(harness, lease)
    left_ms = await harness.client.pttl(running_key(harness))
    assert harness.worker.lease_ms < left_ms <= 2 * harness.worker.lease_ms
    job_id, message_id = await harness.waiting()
    async with harness.unchanged():  # without a slot nothing is written
        for _ in range(2):
            reply = await harness.begin_limited(job_id, message_id, "t2", 1)
            assert reply == (Answer.LIMITED, None, ())
    assert await harness.pending() == 2
    # Each task has its own slots.
    job_id, message_id = await harness.waiting(task="plan")
    claim = Claim(job_id, message_id, "t2", max_running=1)
    plan = {"t2": harness.keys.running("plan")}
    [reply] = await harness.store.begin([claim], harness.worker, plan)
    assert reply.answer is Answer.RUN
    assert await slots(harness) == [lease.job_id]


async def test_the_limit_is_never_exceeded(harness: StoreHarness) -> None:
    await harness.group()
    jobs = await harness.post(12)
    messages = await harness.take(12)
    claims = [
        Claim(job, message, f"t-{job}", max_running=5) for job, message in zip(jobs, messages)
    ]
    limits = {claim.token: running_key(harness) for claim in claims}
    outcomes = await harness.store.begin(claims, harness.worker, limits)
    assert [outcome.answer for outcome in outcomes] == [Answer.RUN] * 5 + [Answer.LIMITED] * 7
    assert await slots(harness) == sorted(jobs[:5])
    # The same holds for many clients at once.
    outcomes = await asyncio.gather(
        *(
            harness.begin_limited(job, message, f"u-{job}", 8)
            for job, message in zip(jobs[5:], messages[5:])
        )
    )
    answers = [outcome.answer for outcome in outcomes]
    assert answers == [Answer.RUN] * 3 + [Answer.LIMITED] * 4


@pytest.mark.parametrize("how", ["done", "error", "dead", "retry", "canceled retry", "release"])
async def test_the_end_of_an_attempt_frees_the_slot(harness: StoreHarness, how: str) -> None:
    lease = await harness.running_limited()
    if how == "canceled retry":
        await harness.cancel(lease.job_id)
    ends = {"done": DONE, "error": FAILED, "dead": GIVEN_UP}

    async def end() -> Answer:
        if how in ends:
            return await harness.finish(lease, ends[how])
        if how == "release":
            return await harness.release(lease)
        return await harness.retry(lease, 60_000)

    assert await end() is (Answer.CANCELED if how == "canceled retry" else Answer.OK)
    assert await slots(harness) == []
    following = await harness.running_limited("next", slots=1)
    # A repeat after a lost reply must not free the slot of the next job.
    again = {"canceled retry": Answer.LOST, "retry": Answer.OK, "release": Answer.OK}
    assert await end() is again.get(how, Answer.ALREADY)
    assert await slots(harness) == [following.job_id]


async def test_an_expired_lease_frees_the_slot(harness: StoreHarness) -> None:
    silent = await harness.running_limited()
    await let_the_lease_run_out(harness, silent)
    # A job's own slot does not block its next attempt.
    reply = await harness.begin_limited(silent.job_id, silent.message_id, "t2", 1)
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 2)
    assert await slots(harness) == [silent.job_id]
    await let_the_lease_run_out(harness, silent)
    heir = await harness.running_limited("t3")
    assert await slots(harness) == [heir.job_id]


async def test_renewals_keep_the_slot(harness: StoreHarness) -> None:
    lease = await harness.running_limited()
    await harness.client.zadd(running_key(harness), {lease.job_id: await harness.now_ms() + 50})
    await harness.client.pexpire(running_key(harness), 5000)
    assert (await harness.renew(lease)).answer is Answer.OK
    await slot_ends_with_lease(harness, lease)
    assert await harness.client.pttl(running_key(harness)) > harness.worker.lease_ms
    job_id, message_id = await harness.waiting()
    assert (await harness.begin_limited(job_id, message_id, "t2", 1)).answer is Answer.LIMITED
    # If the set was deleted, running jobs are added again with their next renewal.
    await harness.client.delete(running_key(harness))
    await harness.renew(lease)
    assert await slots(harness) == [lease.job_id]
    assert await harness.client.pttl(running_key(harness)) > 0


async def test_a_finished_attempt_takes_no_slot(harness: StoreHarness) -> None:
    zombie = await harness.running_limited()
    await let_the_lease_run_out(harness, zombie)
    reply = await harness.begin_next(zombie, "t2")
    heir = Lease(zombie.job_id, zombie.message_id, int(reply.value), "t2")
    await harness.finish(heir)
    await harness.client.delete(running_key(harness))
    assert (await harness.renew(zombie)).answer is Answer.LOST
    assert await slots(harness) == []


async def test_a_repeated_begin_extends_slot_and_lease(harness: StoreHarness) -> None:
    """Its reply was lost. It extends the lease, so it must extend the slot too: otherwise another
    job would get the slot while the lease is live."""
    lease = await harness.running_limited()
    soon = await harness.now_ms() + 10_000
    await harness.client.hset(harness.keys.lease(lease.job_id), "deadline_ms", str(soon))
    await harness.client.zadd(running_key(harness), {lease.job_id: soon})
    reply = await harness.begin_limited(lease.job_id, lease.message_id, lease.token, 1)
    assert (reply.answer, int(reply.value)) == (Answer.RUN, 1)
    assert await slot_ends_with_lease(harness, lease) > soon


async def test_a_short_lease_does_not_end_the_slots_of_long_ones(harness: StoreHarness) -> None:
    """Workers may be configured differently; the set must outlive the longest lease in it."""
    await harness.running_limited("t1", slots=2)
    long_ms = harness.worker.lease_ms
    harness.worker = harness.worker._replace(lease_ms=1000)
    short = await harness.running_limited("t2", slots=2)
    assert await harness.client.pttl(running_key(harness)) >= long_ms - 5000
    await harness.renew(short)
    assert await harness.client.pttl(running_key(harness)) >= long_ms - 5000


async def test_only_jobs_that_run_need_a_slot(harness: StoreHarness) -> None:
    """The end of an exhausted or canceled job does not wait for a slot."""
    busy, retried, ended, flagged = [await harness.running(f"t{n}") for n in range(4)]
    exhausted = await harness.running("t4", max_attempts=1)
    await harness.retry(retried, 60_000)
    await harness.finish(ended)
    await harness.cancel(flagged.job_id)
    for lease in (flagged, exhausted):
        await harness.expire(lease)
    holder = await harness.running_limited("t5")
    expected = (
        (busy, Answer.BUSY),
        (retried, Answer.WAIT),
        (ended, Answer.TERMINAL),
        (flagged, Answer.TERMINAL),
        (exhausted, Answer.EXHAUSTED),
    )
    for lease, answer in expected:
        reply = await harness.begin_limited(lease.job_id, lease.message_id, "u", 1)
        assert reply.answer is answer
    assert (await harness.begin_limited("nobody", "1-1", "u", 1)).answer is Answer.MISSING
    assert await slots(harness) == [holder.job_id]


async def test_limited_and_other_claims_in_one_call(harness: StoreHarness) -> None:
    """A record has three or four keys; its neighbours must not be misread."""
    await harness.group()
    jobs = await harness.post(6)
    messages = await harness.take(6)
    claims = [
        Claim(job, message, f"t{number}", max_running=1 if number % 2 else "")
        for number, (job, message) in enumerate(zip(jobs, messages))
    ]
    limits = {claim.token: running_key(harness) for claim in claims[1::2]}
    outcomes = await harness.store.begin(claims, harness.worker, limits)
    run, limited = Answer.RUN, Answer.LIMITED
    assert [outcome.answer for outcome in outcomes] == [run, run, run, limited, run, limited]
    assert await slots(harness) == [jobs[1]]
    leases = [
        Lease(job, message, 1, claim.token, limits.get(claim.token, ""))
        for job, message, claim in zip(jobs[:3], messages, claims)
    ]
    assert await asyncio.gather(*(harness.finish(lease) for lease in leases)) == [Answer.OK] * 3
    assert await slots(harness) == []
