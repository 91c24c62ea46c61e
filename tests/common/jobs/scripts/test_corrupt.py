"""Keys of the wrong type: a clear error, nothing half-written, other records unaffected."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.contracts.jobs import DeadReason
from common.contracts.queue import Answer
from common.errors import CorruptKey
from common.jobs.store import Claim
from tests.common.kit import DONE, FAILED, Scene, new_job, note


async def spoil(scene: Scene, key: str) -> None:
    """Replace a key with one of another type."""
    await scene.client.delete(key)
    if key.endswith(":lease"):
        await scene.client.rpush(key, "a list")
    else:
        await scene.client.set(key, "a string", ex=600)


def untouched(before: dict[bytes, Any], after: dict[bytes, Any], keys: list[bytes]) -> bool:
    """True if keys are unchanged, except for `updated_ts`."""
    for contents in (before, after):
        for key in keys:
            if isinstance(contents.get(key), dict):
                contents[key].pop(b"updated_ts", None)
    return [after.get(key) for key in keys] == [before.get(key) for key in keys]


@pytest.mark.parametrize("part", ["job", "events"])
async def test_enqueue(scene: Scene, part: str) -> None:
    bad = new_job()
    await spoil(scene, getattr(scene.keys, part)(bad.job_id))
    before = await scene.snapshot()
    with pytest.raises(CorruptKey):
        await scene.store.enqueue(bad, "workers", 200)
    assert await scene.snapshot() == before


async def test_enqueue_with_a_queue_of_the_wrong_type(scene: Scene) -> None:
    await spoil(scene, scene.keys.queue)
    before = await scene.snapshot()
    with pytest.raises(CorruptKey, match="WRONGTYPE"):
        await scene.store.enqueue(
            new_job(idempotency_key="k", idempotency_ttl_s=9, fingerprint="f"), "workers", 200
        )
    assert await scene.snapshot() == before


async def test_enqueue_with_a_corrupt_idempotency_key(scene: Scene) -> None:
    await scene.client.rpush(scene.keys.idempotency("k"), "a list")
    before = await scene.snapshot()
    with pytest.raises(CorruptKey, match="WRONGTYPE"):
        await scene.store.enqueue(
            new_job(idempotency_key="k", idempotency_ttl_s=9, fingerprint="f"), "workers", 200
        )
    assert await scene.snapshot() == before


async def test_a_failed_enqueue_affects_no_other_record(scene: Scene) -> None:
    jobs = [
        new_job(idempotency_key=f"k{n}", idempotency_ttl_s=60, fingerprint="f") for n in range(9)
    ]
    await scene.client.rpush(scene.keys.idempotency("k4"), "a list")
    outcomes = await asyncio.gather(
        *(scene.store.enqueue(job, "workers", 200) for job in jobs), return_exceptions=True
    )
    assert isinstance(outcomes.pop(4), CorruptKey)
    assert [outcome.job_id for outcome in outcomes] == [job.job_id for job in jobs[:4] + jobs[5:]]
    assert await scene.client.xlen(scene.keys.queue) == 8


@pytest.mark.parametrize("part", ["job", "events", "lease"])
async def test_begin(scene: Scene, part: str) -> None:
    await scene.group()
    jobs = await scene.post(5)
    messages = await scene.take(5)
    await spoil(scene, getattr(scene.keys, part)(jobs[2]))
    before = await scene.snapshot()
    claims = [Claim(job, message, f"t-{job}") for job, message in zip(jobs, messages)]
    outcomes = await scene.store.begin(claims, scene.worker)
    assert isinstance(outcomes.pop(2), CorruptKey)
    assert [outcome.answer for outcome in outcomes] == [Answer.RUN] * 4
    after = await scene.snapshot()
    bad = [key for key in {*after, *before} if jobs[2].encode() in key]
    assert untouched(before, after, bad)


@pytest.mark.parametrize("part", ["job", "events", "lease"])
async def test_renew_and_emit(scene: Scene, part: str) -> None:
    good, bad = await scene.running("t1"), await scene.running("t2")
    await spoil(scene, getattr(scene.keys, part)(bad.job_id))
    before = await scene.snapshot()
    outcomes = await asyncio.gather(
        scene.emit(bad, 1, [note("b")]), scene.emit(good, 1, [note("g")]), return_exceptions=True
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1] is Answer.OK
    if part != "events":  # RENEW does not touch the events' contents
        with pytest.raises(CorruptKey):
            await scene.renew(bad)
    after = await scene.snapshot()
    keys = [key for key in {*after, *before} if bad.job_id.encode() in key]
    assert untouched(before, after, keys)


@pytest.mark.parametrize("events", [[], [note("x")]], ids=["no-events", "events"])
@pytest.mark.parametrize("part", ["job", "events", "lease"])
async def test_finish(scene: Scene, part: str, events: list[object]) -> None:
    good, bad = await scene.running("t1"), await scene.running("t2")
    await spoil(scene, getattr(scene.keys, part)(bad.job_id))
    before = await scene.snapshot()
    outcomes = await asyncio.gather(
        scene.finish(bad, DONE, first=1, events=events),
        scene.finish(good, FAILED),
        return_exceptions=True,
    )
    assert isinstance(outcomes[0], CorruptKey)
    assert outcomes[1] is Answer.OK
    after = await scene.snapshot()
    keys = [key for key in {*after, *before} if bad.job_id.encode() in key]
    assert untouched(before, after, keys)
    assert await scene.pending() == 1
    assert (await scene.store.counts()).ended == 1


async def test_finish_with_a_corrupt_queue_is_all_or_nothing(scene: Scene) -> None:
    """There is nothing left to ack: the end counts, or the error means that nothing changed."""
    lease = await scene.running()
    await spoil(scene, scene.keys.queue)
    before = await scene.snapshot()
    try:
        answer = await scene.finish(lease)
    except CorruptKey:
        assert await scene.snapshot() == before
    else:
        assert answer is Answer.OK
        assert (await scene.types(lease.job_id))[-1] == b"done"


async def test_a_dead_letter_stream_of_the_wrong_type(scene: Scene) -> None:
    await scene.group()
    await scene.client.xadd(scene.keys.queue, {"a": "b"})
    [message_id] = await scene.take()
    await spoil(scene, scene.keys.dead_letters)
    with pytest.raises(CorruptKey):
        await scene.store.dead_letter(message_id, DeadReason.NO_JOB_ID, {b"a": b"b"}, "workers")
    assert await scene.pending() == 1


async def test_a_corrupt_counter_or_hint_hides_no_reply(scene: Scene) -> None:
    lease = await scene.running()
    await scene.client.delete(scene.keys.counts)
    await scene.client.rpush(scene.keys.counts, "a list")
    assert await scene.finish(lease) is Answer.OK


async def test_reading_a_job_of_the_wrong_type(scene: Scene) -> None:
    await scene.client.set(scene.keys.job("a"), "a string")
    assert await scene.store.get("a") is None
    assert await scene.store.get("b") is None
