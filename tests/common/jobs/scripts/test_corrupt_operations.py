"""Keys of the wrong type in retry, release, cancel, schedule, redrive and other operations.

An operation that meets one fails alone: other records of the same call succeed, it has written
nothing itself, and once the key is removed the same call succeeds as if nothing had happened. If
the key does not matter for the job, the operation may succeed, but then completely.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from common.contracts.queue import Answer
from common.errors import CorruptKey
from common.jobs.queue import DeadLetterRedrive
from common.jobs.store import Lease
from tests.common.jobs.scripts.test_corrupt import spoil, untouched
from tests.common.kit import DONE, GIVEN_UP, Scene, new_job, note

UNSENT: dict[str, Any] = {"first": 1, "events": [note("a")]}
#: A key of a job, or a shared one.
Part = str


def key_of(scene: Scene, part: Part, job_id: str) -> str:
    keys = scene.keys
    shared = {
        "queue": keys.queue,
        "letters": keys.dead_letters,
        "scheduled": keys.scheduled,
        "running": keys.running("chat"),
    }
    return shared.get(part) or str(getattr(keys, part)(job_id))


async def bystander(scene: Scene) -> Lease:
    """A running job that is not involved."""
    return await scene.running("bystander")


def changed(before: dict[bytes, Any], after: dict[bytes, Any], other: Lease) -> list[bytes]:
    """Keys that changed, except those of the other job."""
    names = [name for name in {*before, *after} if other.job_id.encode() not in name]
    for contents in (before, after):
        for lease in (contents.get(name) for name in names if name.endswith(b":lease")):
            if isinstance(lease, dict) and not lease.get(b"token"):  # no attempt holds it
                for field in (b"token", b"owner", b"deadline_ms", b"event_seq"):
                    lease.pop(field, None)
    return [name for name in names if not untouched(before, after, [name])]


async def all_or_nothing(
    scene: Scene,
    part: Part,
    job_id: str,
    neighbour: Lease,
    operate: Callable[[], Awaitable[Any]],
    *,
    must_fail: bool,
) -> Any:
    """Corrupt a key, run the operation together with another record, and again after the repair;
    returns the operation's answer when it succeeded."""
    key = key_of(scene, part, job_id)
    existed = await scene.client.exists(key)
    if existed:
        await scene.client.rename(key, f"{scene.keys.tag}kept")
    await spoil(scene, key)
    before = await scene.snapshot()
    outcome, other = await asyncio.gather(
        operate(), scene.emit(neighbour, 1, [note("neighbour")]), return_exceptions=True
    )
    assert other is Answer.OK
    if isinstance(outcome, CorruptKey):
        assert changed(before, await scene.snapshot(), neighbour) == []
        await scene.client.delete(key)
    else:
        assert not must_fail, outcome
    if existed:
        await scene.client.rename(f"{scene.keys.tag}kept", key)
    return await operate() if isinstance(outcome, CorruptKey) else outcome


def by_its_job(part: Part) -> bool:
    return part in ("job", "events", "lease")


# -- end of an attempt ----------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["job", "events", "lease", "running", "queue"])
@pytest.mark.parametrize("operation", ["retry", "release"])
async def test_retry_and_release(scene: Scene, operation: str, part: Part) -> None:
    other = await bystander(scene)
    lease = await scene.running_limited()

    async def operate() -> Any:
        return await getattr(scene, operation)(lease, **UNSENT)

    must_fail = by_its_job(part)
    answer = await all_or_nothing(scene, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.OK
    last = b"retry" if operation == "retry" else b"released"
    assert await scene.types(lease.job_id) == [b"queued", b"running", b"message", last]
    assert (await scene.job(lease.job_id))[b"status"] == b"queued"
    if part != "running":
        assert await scene.client.zcard(scene.keys.running("chat")) == 0
    if part != "queue":
        assert await scene.pending() == 2
        idle = await scene.client.xpending_range(
            scene.keys.queue, "workers", lease.message_id, lease.message_id, 1
        )
        assert (idle[0]["time_since_delivered"] > 1_000_000) == (operation == "release")


@pytest.mark.parametrize("flagged", [False, True], ids=["", "canceling"])
@pytest.mark.parametrize("operation", ["retry", "release"])
async def test_an_attempt_that_cannot_be_released_keeps_its_slot(
    scene: Scene, operation: str, flagged: bool
) -> None:
    """It is still running: no other job may have its slot meanwhile."""
    lease = await scene.running_limited()
    if flagged:
        await scene.cancel(lease.job_id)
    await spoil(scene, scene.keys.events(lease.job_id))
    before = await scene.client.zrange(scene.keys.running("chat"), 0, -1, withscores=True)
    with pytest.raises(CorruptKey):
        await getattr(scene, operation)(lease)
    after = await scene.client.zrange(scene.keys.running("chat"), 0, -1, withscores=True)
    assert after == before != []
    assert (await scene.held(lease.job_id))[b"token"] == lease.token.encode()
    assert (await scene.job(lease.job_id))[b"status"] == b"running"


@pytest.mark.parametrize("part", ["job", "events", "lease", "running"])
async def test_a_retry_that_ends_canceled(scene: Scene, part: Part) -> None:
    other = await bystander(scene)
    lease = await scene.running_limited()
    await scene.cancel(lease.job_id)

    async def operate() -> Any:
        return await scene.retry(lease, **UNSENT)

    must_fail = by_its_job(part)
    answer = await all_or_nothing(scene, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.CANCELED
    assert (await scene.types(lease.job_id))[2:] == [b"canceling", b"message", b"canceled"]
    assert await scene.pending() == 1
    assert await scene.held(lease.job_id) == {}


@pytest.mark.parametrize("part", ["job", "events", "lease", "running", "letters"])
@pytest.mark.parametrize("ending", [DONE, GIVEN_UP], ids=["done", "dead"])
async def test_finish(scene: Scene, ending: Any, part: Part) -> None:
    other = await bystander(scene)
    lease = await scene.running_limited()

    async def operate() -> Any:
        return await scene.finish(lease, ending, **UNSENT)

    must_fail = by_its_job(part)
    answer = await all_or_nothing(scene, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.OK
    assert (await scene.types(lease.job_id))[2:] == [b"message", ending.status.encode()]
    assert await scene.pending() == 1
    assert await scene.held(lease.job_id) == {}
    assert (await scene.store.counts()).ended == 1
    if part != "letters":
        assert len(await scene.letters()) == int(ending.dead_letter)


@pytest.mark.parametrize("part", ["running", "queue"])
async def test_renew(scene: Scene, part: Part) -> None:
    """It keeps the lease completely or not at all, together with its message."""
    other = await bystander(scene)
    lease = await scene.running_limited()
    await scene.claim_for("c9", lease.message_id, 90_000)

    async def operate() -> Any:
        return (await scene.renew(lease)).answer

    answer = await all_or_nothing(scene, part, lease.job_id, other, operate, must_fail=False)
    assert answer is Answer.OK
    if part != "queue":
        [entry] = await scene.client.xpending_range(
            scene.keys.queue, "workers", lease.message_id, lease.message_id, 1
        )
        assert (entry["consumer"], entry["time_since_delivered"] < 60_000) == (b"c1", True)


@pytest.mark.parametrize("part", ["events", "letters"])
async def test_begin_of_an_exhausted_job(scene: Scene, part: Part) -> None:
    other = await bystander(scene)
    lease = await scene.running(max_attempts=1)
    await scene.expire(lease)

    async def operate() -> Any:
        outcome = await scene.begin(lease.job_id, lease.message_id, "t2")
        if isinstance(outcome, CorruptKey):
            raise outcome
        return outcome.answer

    must_fail = part == "events"
    answer = await all_or_nothing(scene, part, lease.job_id, other, operate, must_fail=must_fail)
    assert answer is Answer.EXHAUSTED
    assert (await scene.types(lease.job_id))[-1] == b"error"
    assert await scene.held(lease.job_id) == {}
    assert await scene.pending() == 1
    if part != "letters":
        [letter] = await scene.letters()
        assert json.loads(letter.last_error)["kind"] == "attempts_exhausted"


@pytest.mark.parametrize("part", ["events", "running"])
async def test_begin_of_a_limited_task(scene: Scene, part: Part) -> None:
    other = await bystander(scene)
    first = await scene.running_limited("t1", slots=9)
    job_id, message_id = await scene.waiting(max_attempts=3)

    async def operate() -> Any:
        outcome = await scene.begin_limited(job_id, message_id, "t2", 9)
        if isinstance(outcome, CorruptKey):
            raise outcome
        return outcome.answer

    answer = await all_or_nothing(scene, part, job_id, other, operate, must_fail=True)
    assert answer is Answer.RUN
    slots = await scene.client.zrange(scene.keys.running("chat"), 0, -1)
    assert sorted(slots) == sorted([first.job_id.encode(), job_id.encode()])


@pytest.mark.parametrize("part", ["job", "events", "lease"])
async def test_begin_of_a_job_with_a_cancel_request(scene: Scene, part: Part) -> None:
    other = await bystander(scene)
    lease = await scene.running()
    await scene.cancel(lease.job_id)
    await scene.expire(lease)

    async def operate() -> Any:
        outcome = await scene.begin(lease.job_id, lease.message_id, "t2")
        if isinstance(outcome, CorruptKey):
            raise outcome
        return outcome.answer

    answer = await all_or_nothing(scene, part, lease.job_id, other, operate, must_fail=True)
    assert answer is Answer.TERMINAL
    assert (await scene.types(lease.job_id))[-1] == b"canceled"
    assert await scene.pending() == 1


# -- cancel ---------------------------------------------------------------------------------------


async def queued(scene: Scene) -> str:
    [job_id] = await scene.post(max_attempts=2)
    return job_id


async def scheduled(scene: Scene) -> str:
    [job_id] = await scene.post(delay_ms=60_000, schedule_limit=9, max_attempts=2)
    return job_id


async def retrying(scene: Scene) -> str:
    lease = await scene.running()
    await scene.retry(lease, 60_000)
    return lease.job_id


async def running(scene: Scene) -> str:
    return (await scene.running()).job_id


@pytest.mark.parametrize("part", ["job", "events", "lease", "scheduled", "queue"])
@pytest.mark.parametrize("make", [queued, scheduled, retrying, running])
async def test_cancel(scene: Scene, make: Callable[[Scene], Awaitable[str]], part: Part) -> None:
    other = await bystander(scene)
    job_id = await make(scene)

    async def operate() -> Any:
        return (await scene.cancel(job_id)).answer

    must_fail = by_its_job(part)
    answer = await all_or_nothing(scene, part, job_id, other, operate, must_fail=must_fail)
    assert answer is (Answer.CANCELING if make is running else Answer.CANCELED)
    last = b"canceling" if make is running else b"canceled"
    assert (await scene.types(job_id))[-1] == last
    if make is not running:
        assert (await scene.job(job_id))[b"status"] == b"canceled"
        assert await scene.held(job_id) == {}
    if part != "scheduled":
        assert await scene.client.zcard(scene.keys.scheduled) == 0
    if part != "queue":
        assert await scene.pending() == (2 if make is running else 1)


# -- enqueue and promote --------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["job", "events", "lease", "scheduled", "queue"])
@pytest.mark.parametrize("delay_ms", [0, 60_000], ids=["now", "later"])
async def test_enqueue_with_options(scene: Scene, delay_ms: int, part: Part) -> None:
    """I9: a refused request leaves no key, and above all no job that is not queued."""
    other = await bystander(scene)
    job = new_job(
        delay_ms=delay_ms, schedule_limit=9, max_attempts=2,
        idempotency_key="k", idempotency_ttl_s=60, fingerprint="f",
    )  # fmt: skip
    matters = by_its_job(part) or part == ("scheduled" if delay_ms else "queue")

    async def operate() -> Any:
        return await scene.store.enqueue(job, "workers", 200)

    await spoil(scene, key_of(scene, part, job.job_id))
    before = await scene.snapshot()
    outcome, neighbour = await asyncio.gather(
        operate(), scene.emit(other, 1, [note("x")]), return_exceptions=True
    )
    assert neighbour is Answer.OK
    if matters:
        assert isinstance(outcome, CorruptKey)
        assert changed(before, await scene.snapshot(), other) == []
        await scene.client.delete(key_of(scene, part, job.job_id))
        outcome = await operate()
    assert outcome == (job.job_id, False)
    assert len(await scene.job(job.job_id)) == 9
    assert (await scene.held(job.job_id))[b"max_attempts"] == b"2"
    if delay_ms:
        assert await scene.client.zcard(scene.keys.scheduled) == 1
    else:
        found = [fields[b"job_id"] for _, fields in await scene.client.xrange(scene.keys.queue)]
        assert job.job_id.encode() in found


async def due_jobs(scene: Scene) -> list[str]:
    jobs = await scene.post(3, delay_ms=60_000, schedule_limit=9)
    for job_id in jobs:
        await scene.client.zadd(scene.keys.scheduled, {job_id: 1})
    return jobs


@pytest.mark.parametrize("part", ["scheduled", "queue"])
async def test_promote(scene: Scene, part: Part) -> None:
    other = await bystander(scene)
    jobs = await due_jobs(scene)
    length = await scene.client.xlen(scene.keys.queue)

    async def operate() -> Any:
        outcomes = await scene.queue.promote(jobs)
        for outcome in outcomes:
            if isinstance(outcome, CorruptKey):
                raise outcome
        return {outcome.answer for outcome in outcomes}

    answers = await all_or_nothing(scene, part, jobs[0], other, operate, must_fail=True)
    assert answers == {Answer.OK}
    assert await scene.client.xlen(scene.keys.queue) == length + 3


async def test_promote_removes_keys_that_are_not_jobs(scene: Scene) -> None:
    """It would stay due for ever, and block others."""
    jobs = await due_jobs(scene)
    await spoil(scene, scene.keys.job(jobs[1]))
    outcomes = await scene.queue.promote(jobs)
    assert [outcome.answer for outcome in outcomes] == [Answer.OK, Answer.MISSING, Answer.OK]
    assert await scene.client.get(scene.keys.job(jobs[1])) == b"a string"
    assert await scene.client.xlen(scene.keys.queue) == 2
    assert await scene.client.zcard(scene.keys.scheduled) == 0


# -- dead letters ---------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["job", "events", "letters", "scheduled", "queue"])
@pytest.mark.parametrize("delay_ms", [0, 60_000], ids=["now", "later"])
async def test_redrive(scene: Scene, delay_ms: int, part: Part) -> None:
    """Both or neither: a job that is not queued would be lost, as the next call says `created`."""
    other = await bystander(scene)
    await scene.finish(await scene.running(), GIVEN_UP)
    [letter] = await scene.letters()
    job_id = scene.queue.redriven_job_id(letter.id)
    wanted = DeadLetterRedrive(letter.id, job_id, "chat", "{}", 77, delay_ms)
    length = await scene.client.xlen(scene.keys.queue)
    matters = part in ("job", "events", "letters") or part == ("scheduled" if delay_ms else "queue")

    async def operate() -> Any:
        return (await scene.queue.redrive(wanted, 9)).answer

    answer = await all_or_nothing(scene, part, job_id, other, operate, must_fail=matters)
    assert answer is Answer.CREATED
    assert await scene.letters() == []
    assert len(await scene.job(job_id)) == 9
    if delay_ms:
        assert await scene.client.zscore(scene.keys.scheduled, job_id)
    else:
        assert await scene.client.xlen(scene.keys.queue) == length + 1


@pytest.mark.parametrize("part", ["letters", "queue"])
async def test_dead_letter(scene: Scene, part: Part) -> None:
    other = await bystander(scene)
    job_id = str(uuid.uuid4())
    fields = {b"job_id": job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    await scene.client.xadd(scene.keys.queue, fields)
    [message_id] = await scene.take()

    async def operate() -> Any:
        return await scene.dead_letter(message_id, fields)

    answer = await all_or_nothing(scene, part, job_id, other, operate, must_fail=True)
    assert answer is Answer.EXPIRED
    assert (await scene.job(job_id))[b"status"] == b"error"
    assert await scene.pending() == 1


@pytest.mark.parametrize("part", ["job", "events"])
async def test_dead_letter_with_job_keys_of_the_wrong_type(scene: Scene, part: Part) -> None:
    """They exist, so no error is written; the message is dead-lettered nevertheless."""
    await bystander(scene)
    job_id = str(uuid.uuid4())
    fields = {b"job_id": job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    await scene.client.xadd(scene.keys.queue, fields)
    [message_id] = await scene.take()
    key = key_of(scene, part, job_id)
    await spoil(scene, key)
    assert await scene.dead_letter(message_id, fields) is Answer.OK
    assert await scene.client.get(key) == b"a string"
    assert await scene.client.exists(scene.keys.job(job_id), scene.keys.events(job_id)) == 1
    assert await scene.pending() == 1


# -- maintenance of the queue ---------------------------------------------------------------------


async def test_trim_and_remove_idle_consumers_next_to_work(scene: Scene) -> None:
    other = await bystander(scene)
    await spoil(scene, scene.keys.queue)
    outcomes = await asyncio.gather(
        scene.queue.trim(),
        scene.queue.remove_idle_consumers("workers", 0),
        scene.emit(other, 1, [note("x")]),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1:] == [0, Answer.OK]
    assert await scene.client.get(scene.keys.queue) == b"a string"
