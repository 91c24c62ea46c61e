"""Keys of the wrong type, for the scripts of attempts.

An operation that meets one fails alone: other records of the same call succeed, it has written
nothing itself, and once the key is removed the same call succeeds as if nothing had happened. If
the key does not matter for the job, the operation may succeed, but then completely.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.errors import CorruptKey
from common.jobs.store import Claim, Lease
from common.redis.scripts import Reply
from tests.support.store.jobs import DONE, GIVEN_UP, StoreHarness, note

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


async def bystander(harness: StoreHarness) -> Lease:
    """A running job that is not involved."""
    return await harness.running("bystander")


async def all_or_nothing(
    harness: StoreHarness,
    part: str,
    job_id: str,
    other: Lease,
    operate: Operation,
    *,
    must_fail: bool,
) -> Any:
    """Corrupt a key, run the operation together with another record, and again after the repair;
    returns the operation's answer when it succeeded."""
    key = key_of(harness, part, job_id)
    existed = await harness.client.exists(key)
    if existed:
        await harness.client.rename(key, f"{harness.keys.tag}kept")
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
        assert not must_fail, outcome
    if existed:
        await harness.client.rename(f"{harness.keys.tag}kept", key)
    if failed:
        outcome = await operate()
    return outcome.answer if isinstance(outcome, Reply) else outcome


async def slots(harness: StoreHarness) -> list[Any]:
    return await harness.client.zrange(harness.keys.running("chat"), 0, -1, withscores=True)


@parts("job", "events", "lease", "running", "queue")
@pytest.mark.parametrize("operation", ["retry", "release"])
async def test_retry_and_release(harness: StoreHarness, operation: str, part: str) -> None:
    other = await bystander(harness)
    lease = await harness.running_limited()
    operate = partial(getattr(harness, operation), lease, **UNSENT)
    must_fail = part in OF_THE_JOB
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.OK
    last = b"retry" if operation == "retry" else b"released"
    assert await harness.types(lease.job_id) == [b"queued", b"running", b"message", last]
    assert await harness.status(lease.job_id) == b"queued"
    if part != "running":
        assert await slots(harness) == []
    if part != "queue":
        assert await harness.pending() == 2
        idle = await harness.client.xpending_range(
            harness.keys.queue, "workers", lease.message_id, lease.message_id, 1
        )
        assert (idle[0]["time_since_delivered"] > 1_000_000) == (operation == "release")


@pytest.mark.parametrize("flagged", [False, True], ids=["", "canceling"])
@pytest.mark.parametrize("operation", ["retry", "release"])
async def test_an_attempt_that_cannot_be_released_keeps_its_slot(
    harness: StoreHarness, operation: str, flagged: bool
) -> None:
    """It is still running: no other job may have its slot meanwhile."""
    lease = await harness.running_limited()
    if flagged:
        await harness.cancel(lease.job_id)
    await spoil(harness, harness.keys.events(lease.job_id))
    before = await slots(harness)
    with pytest.raises(CorruptKey):
        await getattr(harness, operation)(lease)
    assert await slots(harness) == before != []
    assert (await harness.held(lease.job_id))[b"token"] == lease.token.encode()
    assert await harness.status(lease.job_id) == b"running"


@parts("job", "events", "lease", "running")
async def test_a_retry_that_ends_canceled(harness: StoreHarness, part: str) -> None:
    other = await bystander(harness)
    lease = await harness.running_limited()
    await harness.cancel(lease.job_id)
    operate = partial(harness.retry, lease, **UNSENT)
    must_fail = part in OF_THE_JOB
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.CANCELED
    assert (await harness.types(lease.job_id))[2:] == [b"canceling", b"message", b"canceled"]
    assert await harness.pending() == 1
    assert await harness.held(lease.job_id) == {}


@parts("job", "events", "lease", "running", "letters", "queue")
@pytest.mark.parametrize("events", [False, True], ids=["no-events", "events"])
@pytest.mark.parametrize("ending", [DONE, GIVEN_UP], ids=["done", "dead"])
async def test_finish(harness: StoreHarness, ending: Any, events: bool, part: str) -> None:
    other = await bystander(harness)
    lease = await harness.running_limited()
    operate = partial(harness.finish, lease, ending, **(UNSENT if events else {}))
    must_fail = part in OF_THE_JOB
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.OK
    unsent = [b"message"] if events else []
    assert (await harness.types(lease.job_id))[2:] == [*unsent, ending.status.encode()]
    assert await harness.held(lease.job_id) == {}
    assert (await harness.store.counts()).ended == 1
    if part != "queue":  # otherwise there is nothing to acknowledge
        assert await harness.pending() == 1
    if part != "letters":
        assert len(await harness.letters()) == int(ending.dead_letter)


@parts("job", "events", "lease")
async def test_emit(harness: StoreHarness, part: str) -> None:
    other = await bystander(harness)
    lease = await harness.running()
    operate = partial(harness.emit, lease, 1, [note("b")])
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=True)
    assert answer is Answer.OK
    assert (await harness.types(lease.job_id))[2:] == [b"message"]


@parts("job", "events", "lease", "running", "queue")
async def test_renew(harness: StoreHarness, part: str) -> None:
    """It keeps the lease completely or not at all, together with its message."""
    other = await bystander(harness)
    lease = await harness.running_limited()
    await harness.claim_for("c9", lease.message_id, 90_000)
    operate = partial(harness.renew, lease)
    must_fail = part in ("job", "lease")  # it does not touch the contents of the events
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.OK
    if part != "queue":
        [entry] = await harness.client.xpending_range(
            harness.keys.queue, "workers", lease.message_id, lease.message_id, 1
        )
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
async def test_begin_of_an_exhausted_job(harness: StoreHarness, part: str) -> None:
    other = await bystander(harness)
    lease = await harness.running(max_attempts=1)
    await harness.expire(lease)
    operate = partial(harness.begin, lease.job_id, lease.message_id, "t2")
    must_fail = part == "events"
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.EXHAUSTED
    assert (await harness.types(lease.job_id))[-1] == b"error"
    assert await harness.held(lease.job_id) == {}
    assert await harness.pending() == 1
    if part != "letters":
        [letter] = await harness.letters()
        assert json.loads(letter.last_error)["kind"] == "attempts_exhausted"


@parts("events", "running")
async def test_begin_of_a_limited_task(harness: StoreHarness, part: str) -> None:
    other = await bystander(harness)
    first = await harness.running_limited("t1", slots=9)
    job_id, message_id = await harness.waiting(max_attempts=3)
    operate = partial(harness.begin_limited, job_id, message_id, "t2", 9)
    answer = await all_or_nothing(harness, part, job_id, other, operate, must_fail=True)
    assert answer is Answer.RUN
    assert {name.decode() for name, _ in await slots(harness)} == {first.job_id, job_id}


@parts("job", "events", "lease")
async def test_begin_of_a_job_with_a_cancel_request(harness: StoreHarness, part: str) -> None:
    other = await bystander(harness)
    lease = await harness.running()
    await harness.cancel(lease.job_id)
    await harness.expire(lease)
    operate = partial(harness.begin, lease.job_id, lease.message_id, "t2")
    answer = await all_or_nothing(harness, part, lease.job_id, other, operate, must_fail=True)
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
