"""REDRIVE: a dead letter becomes a job once, even if replies are lost."""

from __future__ import annotations

import pytest

from sluice.common.contracts.queue import Answer
from sluice.common.jobs.queue import DeadLetter, DeadLetterRedrive
from tests.support.store.jobs import GIVEN_UP, StoreHarness


async def dead_letter_of(harness: StoreHarness, **changes: object) -> DeadLetter:
    """A dead letter of a job whose attempts were used up."""
    lease = await harness.running(**changes)
    await harness.finish(lease, GIVEN_UP)
    return (await harness.letters())[0]


def redrive_of(harness: StoreHarness, letter: DeadLetter, **changes: object) -> DeadLetterRedrive:
    fields, job_id = letter.message_fields(), harness.queue.redriven_job_id(letter.id)
    wanted = DeadLetterRedrive(letter.id, job_id, fields["task"], fields["payload"], ttl_s=77)
    return wanted._replace(**changes)


async def test_created_writes_the_job_and_deletes_the_dead_letter(harness: StoreHarness) -> None:
    await dead_letter_of(harness)
    letter = await dead_letter_of(harness, task="plan")
    await dead_letter_of(harness)
    old = await harness.job(letter.job_id)
    wanted = redrive_of(harness, letter)
    assert wanted.job_id != letter.job_id
    assert (await harness.queue.redrive(wanted, 100)).answer is Answer.CREATED
    job = await harness.job(wanted.job_id)
    assert len(job) == 9
    assert (job[b"status"], job[b"task"], job[b"ttl_s"]) == (b"queued", b"plan", b"77")
    assert (job[b"payload"], job[b"error"]) == (b'{"text":"hello"}', b"")
    [event] = await harness.events(wanted.job_id)
    assert (event[b"type"], event[b"step"]) == (b"queued", b"gateway.redrive")
    assert event[b"data"] == b'{"dead_letter_id":"%s"}' % letter.id.encode()
    await harness.check_ttls(wanted.job_id, 77, "job", "events")
    left = [each.id for each in await harness.letters()]
    assert len(left) == 2  # other dead letters stay
    assert letter.id not in left
    message = {b"job_id": wanted.job_id.encode(), b"task": b"plan", b"payload": job[b"payload"]}
    assert (await harness.queued())[-1] == message
    assert await harness.job(letter.job_id) == old  # the ended job is unchanged
    [message_id] = await harness.take()
    assert (await harness.begin(wanted.job_id, message_id, "t9")).answer is Answer.RUN
    async with harness.unchanged():  # repeated after a lost reply
        for again in (wanted, wanted._replace(delay_ms=5000)):
            assert (await harness.queue.redrive(again, 100)).answer is Answer.CREATED


async def test_a_missing_dead_letter_creates_no_job(harness: StoreHarness) -> None:
    letter = await dead_letter_of(harness)
    wanted = redrive_of(harness, letter)
    assert await harness.queue.purge([letter.id]) == 1
    async with harness.unchanged():
        assert (await harness.queue.redrive(wanted, 100)).answer is Answer.MISSING
    await harness.client.delete(harness.keys.dead_letters)
    assert (await harness.queue.redrive(wanted, 100)).answer is Answer.MISSING
    assert not await harness.client.exists(harness.keys.dead_letters)
    # The first call deleted the dead letter: there is no second job, even after the job expired.
    wanted = redrive_of(harness, await dead_letter_of(harness))
    await harness.queue.redrive(wanted, 100)
    await harness.client.delete(*harness.names(wanted.job_id))
    assert (await harness.queue.redrive(wanted, 100)).answer is Answer.MISSING


async def test_a_delayed_redrive_is_scheduled(harness: StoreHarness) -> None:
    letter = await dead_letter_of(harness)
    length = await harness.client.xlen(harness.keys.queue)
    wanted = redrive_of(harness, letter, delay_ms=90_001)
    assert (await harness.queue.redrive(wanted, 100)).answer is Answer.CREATED
    job = await harness.job(wanted.job_id)
    due = int(job[b"created_ts"]) + 90_001
    assert await harness.client.zscore(harness.keys.scheduled, wanted.job_id) == due
    assert await harness.client.xlen(harness.keys.queue) == length
    assert await harness.types(wanted.job_id) == [b"queued", b"scheduled"]
    await harness.check_ttls(wanted.job_id, 77 + 91, "job", "events")
    assert await harness.letters() == []
    await harness.client.zadd(harness.keys.scheduled, {wanted.job_id: 1})
    [outcome] = await harness.queue.promote([wanted.job_id])
    assert outcome.answer is Answer.OK
    assert await harness.client.xlen(harness.keys.queue) == length + 1


async def test_a_full_schedule_refuses_without_writing(harness: StoreHarness) -> None:
    letter = await dead_letter_of(harness)
    await harness.client.zadd(harness.keys.scheduled, {"a": 1, "b": 2})
    async with harness.unchanged():
        for limit in (0, 1, 2):
            reply = await harness.queue.redrive(redrive_of(harness, letter, delay_ms=5), limit)
            assert (reply.answer, int(reply.value or 0)) == (Answer.LIMITED, 2)
    reply = await harness.queue.redrive(redrive_of(harness, letter, delay_ms=5), 3)
    assert reply.answer is Answer.CREATED
    # `MAX_SCHEDULED=0` forbids delays, not redriving.
    reply = await harness.queue.redrive(redrive_of(harness, await dead_letter_of(harness)), 0)
    assert reply.answer is Answer.CREATED


async def test_dead_letters_are_listed_newest_first_in_pages(harness: StoreHarness) -> None:
    for _ in range(5):
        await dead_letter_of(harness)
    everything = [letter.id for letter in await harness.letters()]
    assert everything == sorted(everything, reverse=True)
    page = await harness.queue.dead_letters("+", 2)
    rest = await harness.queue.dead_letters(page[-1].id, 10)
    assert [letter.id for letter in [*page, *rest]] == everything
    assert await harness.queue.count_dead_letters() == 5
    found = await harness.queue.dead_letter(everything[2])
    assert found is not None
    assert found.id == everything[2]
    assert await harness.queue.dead_letter("1-1") is None
    assert await harness.queue.purge(everything[:2]) == 2
    assert await harness.queue.purge(everything[:3]) == 1
    assert await harness.queue.purge([]) == 0
    assert await harness.queue.count_dead_letters() == 2
    ids = {harness.queue.redriven_job_id(letter_id) for letter_id in ("1-0", "1-0", "1-1", "10-0")}
    assert len(ids) == 3  # depends on the dead letter alone
    # A stream of the wrong type is empty.
    await harness.client.set(harness.keys.dead_letters, "a string")
    assert await harness.letters() == []
    assert await harness.queue.count_dead_letters() == 0
    assert await harness.queue.dead_letter("1-1") is None
    assert await harness.queue.purge(["1-1"]) == 0


RIGHTS = b'{"tenant":"shop","tools":["clock"]}'


async def test_a_dead_letter_has_the_options_of_its_job(harness: StoreHarness) -> None:
    assert (await dead_letter_of(harness)).options == b""
    assert (await dead_letter_of(harness, options=RIGHTS)).options == RIGHTS
    lease = await harness.running(options=RIGHTS, max_attempts=1)
    await harness.expire(lease)
    assert (await harness.begin_next(lease, "t2")).answer is Answer.EXHAUSTED
    letter = (await harness.letters())[0]
    assert (letter.job_id, letter.options) == (lease.job_id, RIGHTS)


@pytest.mark.parametrize("left", ["lease", "bare lease", "junk", "nothing"])
async def test_messages_without_jobs_keep_options(harness: StoreHarness, left: str) -> None:
    job_id, message_id = await harness.waiting(options=RIGHTS if left == "lease" else b"")
    lease = harness.keys.lease(job_id)
    if left == "bare lease":
        await harness.client.hset(lease, "attempt", "1")
    elif left == "junk":
        await harness.client.set(lease, "a string", ex=60)
    await harness.client.delete(harness.keys.job(job_id))
    fields = {b"job_id": job_id.encode(), b"task": b"chat", b"payload": b"{}"}
    await harness.dead_letter(message_id, fields)
    [letter] = await harness.letters()
    known = {"lease": RIGHTS, "bare lease": b""}
    assert letter.options == known.get(left)


async def test_the_new_job_has_the_options(harness: StoreHarness) -> None:
    letter = await dead_letter_of(harness, options=RIGHTS)
    wanted = redrive_of(harness, letter, options=RIGHTS, delay_ms=30_000)
    assert (await harness.queue.redrive(wanted, 100)).answer is Answer.CREATED
    assert await harness.held(wanted.job_id) == {b"attempt": b"0", b"options": RIGHTS}
    await harness.check_ttls(wanted.job_id, 107, "lease")
    async with harness.unchanged():
        assert (await harness.queue.redrive(wanted, 100)).answer is Answer.CREATED
    # No job is created if its options cannot be written.
    letter = await dead_letter_of(harness, options=RIGHTS)
    wanted = redrive_of(harness, letter, options=RIGHTS)
    await harness.client.set(harness.keys.lease(wanted.job_id), "a string", ex=60)
    async with harness.refuses():
        await harness.queue.redrive(wanted, 100)
