"""REDRIVE: a dead letter becomes a job once, even if replies are lost."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.queue import Answer
from common.errors import CorruptKey
from common.jobs.queue import DeadLetter, DeadLetterRedrive
from tests.common.kit import GIVEN_UP, Scene


async def dead_letter_of(scene: Scene, **changes: object) -> DeadLetter:
    """A dead letter of a job whose attempts were used up."""
    lease = await scene.running(**changes)
    await scene.finish(lease, GIVEN_UP)
    return (await scene.letters())[0]


def redrive_of(scene: Scene, letter: DeadLetter, **changes: object) -> DeadLetterRedrive:
    fields = letter.message_fields()
    wanted = DeadLetterRedrive(
        letter.id,
        scene.queue.redriven_job_id(letter.id),
        fields["task"],
        fields["payload"],
        ttl_s=77,
    )
    return wanted._replace(**changes)  # type: ignore[arg-type]


async def test_created_writes_the_job_and_deletes_the_dead_letter(scene: Scene) -> None:
    letter = await dead_letter_of(scene, task="plan")
    old = await scene.job(letter.job_id)
    wanted = redrive_of(scene, letter)
    assert wanted.job_id != letter.job_id
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.CREATED
    job = await scene.job(wanted.job_id)
    assert len(job) == 9
    assert (job[b"status"], job[b"task"], job[b"ttl_s"]) == (b"queued", b"plan", b"77")
    assert (job[b"payload"], job[b"error"]) == (b'{"text":"hello"}', b"")
    [event] = await scene.events(wanted.job_id)
    assert (event[b"type"], event[b"step"]) == (b"queued", b"gateway.redrive")
    assert event[b"data"] == b'{"dead_letter_id":"%s"}' % letter.id.encode()
    for key in (scene.keys.job, scene.keys.events):
        assert 70 < await scene.client.ttl(key(wanted.job_id)) <= 77
    assert await scene.letters() == []
    (_, fields) = (await scene.client.xrange(scene.keys.queue))[-1]
    assert fields == {
        b"job_id": wanted.job_id.encode(),
        b"task": b"plan",
        b"payload": b'{"text":"hello"}',
    }
    assert await scene.job(letter.job_id) == old  # the ended job is unchanged
    [message_id] = await scene.take()
    assert (await scene.begin(wanted.job_id, message_id, "t9")).answer is Answer.RUN


async def test_a_repeat_after_a_lost_reply_changes_nothing(scene: Scene) -> None:
    letter = await dead_letter_of(scene)
    wanted = redrive_of(scene, letter)
    await scene.queue.redrive(wanted, 100)
    before = await scene.snapshot()
    for changes in ({}, {"delay_ms": 5000}):
        again = wanted._replace(**changes)
        assert (await scene.queue.redrive(again, 100)).answer is Answer.CREATED
    assert await scene.snapshot() == before


async def test_twenty_concurrent_calls_create_one_job(scene: Scene) -> None:
    letter = await dead_letter_of(scene)
    wanted = redrive_of(scene, letter)
    length = await scene.client.xlen(scene.keys.queue)
    replies = await asyncio.gather(*(scene.queue.redrive(wanted, 100) for _ in range(20)))
    assert {reply.answer for reply in replies} == {Answer.CREATED}
    assert await scene.client.xlen(scene.keys.queue) == length + 1


async def test_a_missing_dead_letter_creates_no_job(scene: Scene) -> None:
    letter = await dead_letter_of(scene)
    wanted = redrive_of(scene, letter)
    assert await scene.queue.purge([letter.id]) == 1
    before = await scene.snapshot()
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.MISSING
    assert await scene.snapshot() == before
    await scene.client.delete(scene.keys.dead_letters)
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.MISSING
    assert not await scene.client.exists(scene.keys.dead_letters)


async def test_after_its_job_has_expired_the_dead_letter_is_missing(scene: Scene) -> None:
    """The first call deleted the dead letter: there is no second job, however late the call."""
    letter = await dead_letter_of(scene)
    wanted = redrive_of(scene, letter)
    await scene.queue.redrive(wanted, 100)
    await scene.client.delete(scene.keys.job(wanted.job_id), scene.keys.events(wanted.job_id))
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.MISSING


async def test_other_dead_letters_stay(scene: Scene) -> None:
    await dead_letter_of(scene)
    letter = await dead_letter_of(scene)
    await dead_letter_of(scene)
    await scene.queue.redrive(redrive_of(scene, letter), 100)
    assert len(await scene.letters()) == 2
    assert letter.id not in {left.id for left in await scene.letters()}


async def test_a_delayed_redrive_is_scheduled(scene: Scene) -> None:
    letter = await dead_letter_of(scene)
    length = await scene.client.xlen(scene.keys.queue)
    wanted = redrive_of(scene, letter, delay_ms=90_001)
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.CREATED
    job = await scene.job(wanted.job_id)
    due = int(job[b"created_ts"]) + 90_001
    assert await scene.client.zscore(scene.keys.scheduled, wanted.job_id) == due
    assert await scene.client.xlen(scene.keys.queue) == length
    assert await scene.types(wanted.job_id) == [b"queued", b"scheduled"]
    for key in (scene.keys.job, scene.keys.events):
        assert 70 < await scene.client.ttl(key(wanted.job_id)) - 91 <= 77
    assert await scene.letters() == []
    await scene.client.zadd(scene.keys.scheduled, {wanted.job_id: 1})
    [outcome] = await scene.queue.promote([wanted.job_id])
    assert outcome.answer is Answer.OK
    assert await scene.client.xlen(scene.keys.queue) == length + 1


async def test_a_full_schedule_refuses_without_writing(scene: Scene) -> None:
    letter = await dead_letter_of(scene)
    await scene.client.zadd(scene.keys.scheduled, {"a": 1, "b": 2})
    before = await scene.snapshot()
    for limit in (0, 1, 2):
        reply = await scene.queue.redrive(redrive_of(scene, letter, delay_ms=5), limit)
        assert (reply.answer, int(reply.value or 0)) == (Answer.LIMITED, 2)
    assert await scene.snapshot() == before
    reply = await scene.queue.redrive(redrive_of(scene, letter, delay_ms=5), 3)
    assert reply.answer is Answer.CREATED


@pytest.mark.parametrize("waiting", [0, 5])
async def test_without_a_delay_the_schedule_does_not_matter(scene: Scene, waiting: int) -> None:
    """`MAX_SCHEDULED=0` forbids delays, not redriving."""
    letter = await dead_letter_of(scene)
    if waiting:
        await scene.client.zadd(scene.keys.scheduled, {str(n): n for n in range(waiting)})
    reply = await scene.queue.redrive(redrive_of(scene, letter), 0)
    assert reply.answer is Answer.CREATED


async def test_the_new_id_depends_on_the_dead_letter_alone(scene: Scene) -> None:
    ids = {scene.queue.redriven_job_id(letter_id) for letter_id in ("1-0", "1-0", "1-1", "10-0")}
    assert len(ids) == 3


async def test_dead_letters_are_listed_newest_first_in_pages(scene: Scene) -> None:
    for _ in range(5):
        await dead_letter_of(scene)
    everything = [letter.id for letter in await scene.letters()]
    assert everything == sorted(everything, reverse=True)
    page = await scene.queue.dead_letters("+", 2)
    rest = await scene.queue.dead_letters(page[-1].id, 10)
    assert [letter.id for letter in [*page, *rest]] == everything
    assert await scene.queue.count_dead_letters() == 5
    found = await scene.queue.dead_letter(everything[2])
    assert found is not None
    assert found.id == everything[2]
    assert await scene.queue.dead_letter("1-1") is None
    assert await scene.queue.purge(everything[:2]) == 2
    assert await scene.queue.purge(everything[:3]) == 1
    assert await scene.queue.purge([]) == 0
    assert await scene.queue.count_dead_letters() == 2


async def test_a_dead_letter_stream_of_the_wrong_type_is_empty(scene: Scene) -> None:
    await scene.client.set(scene.keys.dead_letters, "a string")
    assert await scene.letters() == []
    assert await scene.queue.count_dead_letters() == 0
    assert await scene.queue.dead_letter("1-1") is None
    assert await scene.queue.purge(["1-1"]) == 0


RIGHTS = b'{"tenant":"shop","tools":["clock"]}'


async def test_a_dead_letter_has_the_options_of_its_job(scene: Scene) -> None:
    letter = await dead_letter_of(scene, options=RIGHTS)
    assert letter.options == RIGHTS
    await scene.queue.purge([letter.id])
    assert (await dead_letter_of(scene)).options == b""


async def test_a_dead_letter_of_an_exhausted_job_has_its_options(scene: Scene) -> None:
    lease = await scene.running(options=RIGHTS, max_attempts=1)
    await scene.expire(lease)
    assert (await scene.begin(lease.job_id, lease.message_id, "t2")).answer is Answer.EXHAUSTED
    [letter] = await scene.letters()
    assert letter.options == RIGHTS


@pytest.mark.parametrize("left", ["lease", "bare lease", "junk", "nothing"])
async def test_a_message_without_a_job_keeps_known_options(scene: Scene, left: str) -> None:
    job_id, message_id = await scene.waiting(options=RIGHTS if left == "lease" else b"")
    lease = scene.keys.lease(job_id)
    if left == "bare lease":
        await scene.client.hset(lease, "attempt", "1")
    elif left == "junk":
        await scene.client.set(lease, "a string", ex=60)
    await scene.client.delete(scene.keys.job(job_id))
    fields = {b"job_id": job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    await scene.dead_letter(message_id, fields)
    [letter] = await scene.letters()
    known = {"lease": RIGHTS, "bare lease": b""}
    assert letter.options == known.get(left)


async def test_the_new_job_has_the_options(scene: Scene) -> None:
    letter = await dead_letter_of(scene, options=RIGHTS)
    wanted = redrive_of(scene, letter, options=RIGHTS, delay_ms=30_000)
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.CREATED
    assert await scene.held(wanted.job_id) == {b"attempt": b"0", b"options": RIGHTS}
    assert 100 < await scene.client.ttl(scene.keys.lease(wanted.job_id)) <= 107
    before = await scene.snapshot()
    assert (await scene.queue.redrive(wanted, 100)).answer is Answer.CREATED
    assert await scene.snapshot() == before


async def test_no_job_is_created_if_options_cannot_be_written(scene: Scene) -> None:
    letter = await dead_letter_of(scene, options=RIGHTS)
    wanted = redrive_of(scene, letter, options=RIGHTS)
    await scene.client.set(scene.keys.lease(wanted.job_id), "a string", ex=60)
    before = await scene.snapshot()
    with pytest.raises(CorruptKey):
        await scene.queue.redrive(wanted, 100)
    assert await scene.snapshot() == before
