"""Keys of the wrong type, for the scripts of jobs.

An operation that meets one fails alone: other records of the same call succeed, it has written
nothing itself, and once the key is removed the same call succeeds as if nothing had happened. If
the key does not matter for the job, the operation may succeed, but then completely.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.errors import CorruptKey
from sluice.common.jobs.queue import DeadLetterRedrive
from sluice.common.jobs.store import Claim, Lease
from sluice.common.redis.scripts import Reply
from tests.support.store.jobs import DONE, GIVEN_UP, StoreHarness, new_job, note

UNSENT: dict[str, Any] = {"first": 1, "events": [note("a")]}
Operation = Callable[[], Awaitable[Any]]
#: Keys of the job itself: an operation cannot do without them.
OF_THE_JOB = ("job", "events", "lease")


def parts(*names: str) -> Any:
    return pytest.mark.parametrize("part", names)


def key_of(harness: StoreHarness, part: str, job_id: str) -> str:
    keys = harness.keys
    shared = {
        "queue": keys.queue,
        "letters": keys.dead_letters,
        "scheduled": keys.scheduled,
        "running": keys.running("chat"),
        "idempotency": keys.idempotency("k"),
    }
    return shared.get(part) or str(getattr(keys, part)(job_id))


async def spoil(harness: StoreHarness, key: str) -> None:
    """Replace a key with one of another type."""
    await harness.client.delete(key)
    if key.endswith(":lease") or "idempotency" in key:
        await harness.client.rpush(key, "a list")
    else:
        await harness.client.set(key, "a string", ex=600)


def changed(before: dict[bytes, Any], after: dict[bytes, Any], other: str) -> list[bytes]:
    """Keys that changed, except those of the other job and `updated_ts`."""
    names = [name for name in {*before, *after} if other.encode() not in name]
    for contents in (before, after):
        for name in names:
            value = contents.get(name)
            if isinstance(value, dict):
                value.pop(b"updated_ts", None)
            if name.endswith(b":lease") and isinstance(value, dict) and not value.get(b"token"):
                for field in (b"token", b"owner", b"deadline_ms", b"event_seq"):
                    value.pop(field, None)  # no attempt holds it
    return [name for name in names if before.get(name) != after.get(name)]


@pytest.fixture
async def other(harness: StoreHarness) -> Lease:
    """A running job that is not involved."""
    return await harness.running("bystander")


async def all_or_nothing(
    harness: StoreHarness, other: Lease, part: str, job_id: str, operate: Operation, *needed: str
) -> Any:
    """Corrupt a key, run the operation together with another record, and again after the repair;
    returns the operation's answer when it succeeded. Without the needed parts, by default those of
    the job, it must fail."""
    key, kept = key_of(harness, part, job_id), f"{harness.keys.tag}kept"
    existed = await harness.client.exists(key)
    if existed:
        await harness.client.rename(key, kept)
    await spoil(harness, key)
    before = await harness.snapshot()
    outcome, neighbour = await asyncio.gather(
        operate(), harness.emit(other, 1, [note("neighbour")]), return_exceptions=True
    )
    assert neighbour is Answer.OK
    failed = isinstance(outcome, CorruptKey)
    if failed:
        assert changed(before, await harness.snapshot(), other.job_id) == []
        await harness.client.delete(key)
    else:
        assert part not in (needed or OF_THE_JOB), outcome
    if existed:
        await harness.client.rename(kept, key)
    if failed:
        outcome = await operate()
    return outcome.answer if isinstance(outcome, Reply) else outcome


async def slots(harness: StoreHarness) -> list[Any]:
    return await harness.client.zrange(harness.keys.running("chat"), 0, -1, withscores=True)


@parts("job", "events", "lease", "running", "queue")
@pytest.mark.parametrize("operation", ["retry", "release"])
async def test_retry_and_release(
    harness: StoreHarness, other: Lease, operation: str, part: str
) -> None:
    lease = await harness.running_limited()
    operate = partial(getattr(harness, operation), lease, **UNSENT)
    assert await all_or_nothing(harness, other, part, lease.job_id, operate) is Answer.OK
    last = b"retry" if operation == "retry" else b"released"
    assert await harness.types(lease.job_id) == [b"queued", b"running", b"message", last]
    assert await harness.status(lease.job_id) == b"queued"
    if part != "running":
        assert await slots(harness) == []
    if part != "queue":
        assert await harness.pending() == 2
        idle_ms = (await harness.pending_entry(lease.message_id))["time_since_delivered"]
        assert (idle_ms > 1_000_000) == (operation == "release")


@parts("job", "events", "lease", "running")
async def test_a_retry_that_ends_canceled(harness: StoreHarness, other: Lease, part: str) -> None:
    lease = await harness.running_limited()
    await harness.cancel(lease.job_id)
    operate = partial(harness.retry, lease, **UNSENT)
    assert await all_or_nothing(harness, other, part, lease.job_id, operate) is Answer.CANCELED
    assert (await harness.types(lease.job_id))[2:] == [b"canceling", b"message", b"canceled"]
    assert await harness.pending() == 1
    assert await harness.held(lease.job_id) == {}


@parts("job", "events", "lease", "running", "letters", "queue")
@pytest.mark.parametrize("events", [False, True], ids=["no-events", "events"])
@pytest.mark.parametrize("ending", [DONE, GIVEN_UP], ids=["done", "dead"])
async def test_finish(
    harness: StoreHarness, other: Lease, ending: Any, events: bool, part: str
) -> None:
    lease = await harness.running_limited()
    operate = partial(harness.finish, lease, ending, **(UNSENT if events else {}))
    assert await all_or_nothing(harness, other, part, lease.job_id, operate) is Answer.OK
    unsent = [b"message"] if events else []
    assert (await harness.types(lease.job_id))[2:] == [*unsent, ending.status.encode()]
    assert await harness.held(lease.job_id) == {}
    assert (await harness.store.counts()).ended == 1
    if part != "queue":  # otherwise there is nothing to acknowledge
        assert await harness.pending() == 1
    if part != "letters":
        assert len(await harness.letters()) == int(ending.dead_letter)


@parts("job", "events", "lease")
async def test_emit(harness: StoreHarness, other: Lease, part: str) -> None:
    lease = await harness.running()
    operate = partial(harness.emit, lease, 1, [note("b")])
    assert await all_or_nothing(harness, other, part, lease.job_id, operate, part) is Answer.OK
    assert (await harness.types(lease.job_id))[2:] == [b"message"]


@parts("job", "events", "lease", "running", "queue")
async def test_renew(harness: StoreHarness, other: Lease, part: str) -> None:
    """It keeps the lease completely or not at all, together with its message."""
    lease = await harness.running_limited()
    await harness.claim_for("c9", lease.message_id, 90_000)
    operate = partial(harness.renew, lease)
    needed = ("job", "lease")  # it does not touch the contents of the events
    assert await all_or_nothing(harness, other, part, lease.job_id, operate, *needed) is Answer.OK
    if part != "queue":
        entry = await harness.pending_entry(lease.message_id)
        assert (entry["consumer"], entry["time_since_delivered"] < 60_000) == (b"c1", True)


@parts("job", "events", "lease")
async def test_begin_of_several_jobs(harness: StoreHarness, part: str) -> None:
    await harness.group()
    jobs = await harness.post(5)
    messages = await harness.take(5)
    await spoil(harness, key_of(harness, part, jobs[2]))
    before = await harness.snapshot()
    claims = [Claim(job, message, f"t-{job}") for job, message in zip(jobs, messages)]
    outcomes = await harness.store.begin(claims, harness.worker)
    assert isinstance(outcomes.pop(2), CorruptKey)
    assert [outcome.answer for outcome in outcomes] == [Answer.RUN] * 4
    after = await harness.snapshot()
    assert not [key for key in changed(before, after, "none") if jobs[2].encode() in key]


@parts("events", "letters")
async def test_begin_of_an_exhausted_job(harness: StoreHarness, other: Lease, part: str) -> None:
    lease = await harness.running(max_attempts=1)
    await harness.expire(lease)
    operate = partial(harness.begin, lease.job_id, lease.message_id, "t2")
    answer = await all_or_nothing(harness, other, part, lease.job_id, operate, "events")
    assert answer is Answer.EXHAUSTED
    assert (await harness.types(lease.job_id))[-1] == b"error"
    assert await harness.held(lease.job_id) == {}
    assert await harness.pending() == 1
    if part != "letters":
        [letter] = await harness.letters()
        assert json.loads(letter.last_error)["kind"] == "attempts_exhausted"


@parts("events", "running")
async def test_begin_of_a_limited_task(harness: StoreHarness, other: Lease, part: str) -> None:
    first = await harness.running_limited("t1", slots=9)
    job_id, message_id = await harness.waiting(max_attempts=3)
    operate = partial(harness.begin_limited, job_id, message_id, "t2", 9)
    assert await all_or_nothing(harness, other, part, job_id, operate, part) is Answer.RUN
    assert {name.decode() for name, _ in await slots(harness)} == {first.job_id, job_id}


@parts("job", "events", "lease")
async def test_begin_of_a_canceling_job(harness: StoreHarness, other: Lease, part: str) -> None:
    lease = await harness.running()
    await harness.cancel(lease.job_id)
    await harness.expire(lease)
    operate = partial(harness.begin, lease.job_id, lease.message_id, "t2")
    answer = await all_or_nothing(harness, other, part, lease.job_id, operate, part)
    assert answer is Answer.TERMINAL
    assert (await harness.types(lease.job_id))[-1] == b"canceled"
    assert await harness.pending() == 1


async def test_a_corrupt_counter_or_hint_hides_no_reply(harness: StoreHarness) -> None:
    lease = await harness.running()
    await harness.client.delete(harness.keys.counts)
    await harness.client.rpush(harness.keys.counts, "a list")
    assert await harness.finish(lease) is Answer.OK


async def test_reading_a_job_of_the_wrong_type(harness: StoreHarness) -> None:
    await harness.client.set(harness.keys.job("a"), "a string")
    assert await harness.store.get("a") is None
    assert await harness.store.get("b") is None


# -- Scripts of gateways and of the queue ---------------------------------------------------------


now_or_later = pytest.mark.parametrize("delay_ms", [0, 60_000], ids=["now", "later"])


async def queued(harness: StoreHarness) -> str:
    return (await harness.post(max_attempts=2))[0]


async def scheduled(harness: StoreHarness) -> str:
    return (await harness.post(delay_ms=60_000, schedule_limit=9, max_attempts=2))[0]


async def retrying(harness: StoreHarness) -> str:
    lease = await harness.running()
    await harness.retry(lease, 60_000)
    return lease.job_id


async def running(harness: StoreHarness) -> str:
    return (await harness.running()).job_id


@parts("job", "events", "lease", "scheduled", "queue")
@pytest.mark.parametrize("make", [queued, scheduled, retrying, running])
async def test_cancel(
    harness: StoreHarness, other: Lease, make: Callable[[StoreHarness], Awaitable[str]], part: str
) -> None:
    job_id = await make(harness)
    operate = partial(harness.cancel, job_id)
    answer = await all_or_nothing(harness, other, part, job_id, operate)
    assert answer is (Answer.CANCELING if make is running else Answer.CANCELED)
    last = b"canceling" if make is running else b"canceled"
    assert (await harness.types(job_id))[-1] == last
    if make is not running:
        assert await harness.status(job_id) == b"canceled"
        assert await harness.held(job_id) == {}
    if part != "scheduled":
        assert await harness.client.zcard(harness.keys.scheduled) == 0
    if part != "queue":
        assert await harness.pending() == (2 if make is running else 1)


@parts("job", "events", "lease", "scheduled", "queue", "idempotency")
@now_or_later
async def test_enqueue(harness: StoreHarness, other: Lease, delay_ms: int, part: str) -> None:
    """I9: a refused request leaves no key, and above all no job that is not queued."""
    job = new_job(
        delay_ms=delay_ms, schedule_limit=9, max_attempts=2,
        idempotency_key="k", idempotency_ttl_s=60, fingerprint="f",
    )  # fmt: skip
    needed = (*OF_THE_JOB, "idempotency", "scheduled" if delay_ms else "queue")
    operate = partial(harness.store.enqueue, job, "workers", 200)
    outcome = await all_or_nothing(harness, other, part, job.job_id, operate, *needed)
    assert outcome == (job.job_id, False)
    assert len(await harness.job(job.job_id)) == 9
    assert (await harness.held(job.job_id))[b"max_attempts"] == b"2"
    if delay_ms:
        assert await harness.client.zcard(harness.keys.scheduled) == 1
    else:
        assert job.job_id.encode() in [fields[b"job_id"] for fields in await harness.queued()]


async def due_jobs(harness: StoreHarness) -> list[str]:
    jobs = await harness.post(3, delay_ms=60_000, schedule_limit=9)
    for job_id in jobs:
        await harness.client.zadd(harness.keys.scheduled, {job_id: 1})
    return jobs


@parts("scheduled", "queue")
async def test_promote(harness: StoreHarness, other: Lease, part: str) -> None:
    jobs = await due_jobs(harness)
    length = await harness.client.xlen(harness.keys.queue)

    async def operate() -> Any:
        outcomes = await harness.queue.promote(jobs)
        failed = [outcome for outcome in outcomes if isinstance(outcome, CorruptKey)]
        return failed[0] if failed else {outcome.answer for outcome in outcomes}

    assert await all_or_nothing(harness, other, part, jobs[0], operate, part) == {Answer.OK}
    assert await harness.client.xlen(harness.keys.queue) == length + 3


async def test_promote_removes_keys_that_are_not_jobs(harness: StoreHarness) -> None:
    """It would stay due for ever, and block others."""
    jobs = await due_jobs(harness)
    await spoil(harness, harness.keys.job(jobs[1]))
    outcomes = await harness.queue.promote(jobs)
    assert [outcome.answer for outcome in outcomes] == [Answer.OK, Answer.MISSING, Answer.OK]
    assert await harness.client.get(harness.keys.job(jobs[1])) == b"a string"
    assert await harness.client.xlen(harness.keys.queue) == 2
    assert await harness.client.zcard(harness.keys.scheduled) == 0


@parts("job", "events", "letters", "scheduled", "queue")
@now_or_later
async def test_redrive(harness: StoreHarness, other: Lease, delay_ms: int, part: str) -> None:
    """Both or neither: a job that is not queued would be lost, as the next call says `created`."""
    await harness.finish(await harness.running(), GIVEN_UP)
    [letter] = await harness.letters()
    job_id = harness.queue.redriven_job_id(letter.id)
    wanted = DeadLetterRedrive(letter.id, job_id, "chat", "{}", 77, delay_ms)
    length = await harness.client.xlen(harness.keys.queue)
    needed = ("job", "events", "letters", "scheduled" if delay_ms else "queue")
    operate = partial(harness.queue.redrive, wanted, 9)
    assert await all_or_nothing(harness, other, part, job_id, operate, *needed) is Answer.CREATED
    assert await harness.letters() == []
    assert len(await harness.job(job_id)) == 9
    if delay_ms:
        assert await harness.client.zscore(harness.keys.scheduled, job_id)
    else:
        assert await harness.client.xlen(harness.keys.queue) == length + 1


@parts("letters", "queue", "job", "events")
async def test_dead_letter(harness: StoreHarness, other: Lease, part: str) -> None:
    """If keys of the job exist, no error is written; the message is dead-lettered nevertheless."""
    job_id = str(uuid.uuid4())
    fields = {b"job_id": job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    await harness.client.xadd(harness.keys.queue, fields)
    [message_id] = await harness.take()
    operate = partial(harness.dead_letter, message_id, fields)
    needed = ("letters", "queue")
    answer = await all_or_nothing(harness, other, part, job_id, operate, *needed)
    if part in needed:
        assert answer is Answer.EXPIRED
        assert await harness.status(job_id) == b"error"
    else:
        assert answer is Answer.OK
        assert await harness.client.get(key_of(harness, part, job_id)) == b"a string"
        assert await harness.client.exists(*harness.names(job_id, "job", "events")) == 1
    assert await harness.pending() == 1


async def test_trim_and_remove_idle_consumers(harness: StoreHarness, other: Lease) -> None:
    await spoil(harness, harness.keys.queue)
    outcomes = await asyncio.gather(
        harness.queue.trim(),
        harness.queue.remove_idle_consumers("workers", 0),
        harness.emit(other, 1, [note("x")]),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1:] == [0, Answer.OK]
    assert await harness.client.get(harness.keys.queue) == b"a string"
