"""SUBMIT: the core job of an upload, its limits, and the image afterwards."""

from __future__ import annotations

import asyncio

import pytest

from common import codec
from common.contracts.access import AccessKeys
from common.errors import CorruptKey
from common.features.images.types import ImageAnswer
from common.jobs.limits import AdmissionLimits, KeyLimits
from tests.support.store.images import (
    ADMISSION,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    ImageHarness,
    uploaded,
)


async def test_the_job_is_a_core_job_with_ids_only(images: ImageHarness) -> None:
    image_id = await images.create(tenant="acme")
    upload_id = await images.claim(image_id)
    wanted = uploaded(image_id, upload_id)
    made = await images.store.submit(wanted, ADMISSION)
    assert (made.answer, made.facts) == (OK, {"job_id": wanted.job_id})
    [(_, message)] = await images.client.xrange(images.jobs.queue)
    payload = {"tool": "image.process", "args": {"image_id": image_id, "upload_id": upload_id}}
    assert (message[b"job_id"].decode(), message[b"task"]) == (wanted.job_id, b"tool")
    assert codec.loads(message[b"payload"]) == payload
    job = await images.client.hgetall(images.jobs.job(wanted.job_id))
    assert (job[b"status"], job[b"task"], job[b"ttl_s"]) == (b"queued", b"tool", b"600")
    assert codec.loads(job[b"payload"]) == payload
    lease = await images.client.hgetall(images.jobs.lease(wanted.job_id))
    assert lease == {b"attempt": b"0", b"options": b'{"tenant":"acme"}'}
    events = await images.client.xrange(images.jobs.events(wanted.job_id))
    assert [fields[b"type"] for _, fields in events] == [b"queued"]
    for key in (images.jobs.job, images.jobs.lease, images.jobs.events):
        assert 590 < await images.client.ttl(key(wanted.job_id)) <= 600


async def test_the_image_is_processing_and_kept_longer(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id)
    await images.shorten(image_id)
    await images.client.delete(images.keys.upload(image_id))  # a lost guard is restored
    wanted = uploaded(image_id, upload_id)
    await images.store.submit(wanted, ADMISSION)
    record = await images.record(image_id)
    assert (record["status"], record["upload_id"]) == ("processing", upload_id)
    assert (record["job_id"], record["uploaded_type"]) == (wanted.job_id, "image/jpeg")
    assert (record["source_bytes"], record["source_sha256"]) == ("1234", "ab" * 32)
    assert "upload_deadline_ms" not in record
    assert await images.stage(image_id) == ("queued", "0")
    assert await images.guard(image_id) == b"claimed"
    assert await images.ttls(image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert await images.under_way() == [image_id]
    assert await images.without_ttl() == []
    # A job without a tenant has no options.
    assert await images.client.hgetall(images.jobs.lease(wanted.job_id)) == {b"attempt": b"0"}


async def test_an_upload_has_one_job_whatever_its_id(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id)
    outcomes = await asyncio.gather(
        *(images.store.submit(uploaded(image_id, upload_id), ADMISSION) for _ in range(20))
    )
    assert {outcome.answer for outcome in outcomes} == {OK}
    assert len({outcome.facts["job_id"] for outcome in outcomes}) == 1
    assert await images.client.xlen(images.jobs.queue) == 1


async def test_a_full_queue_refuses_and_the_upload_keeps_its_guard(images: ImageHarness) -> None:
    image_id = await images.create()
    wanted = uploaded(image_id, await images.claim(image_id))
    await images.processing()
    async with images.unchanged():
        full = await images.store.submit(wanted, AdmissionLimits("workers", 1, 600))
        assert (full.answer, full.facts) == (ImageAnswer.FULL, {"backlog": 1})
    assert (await images.store.submit(wanted, ADMISSION)).answer is OK


async def test_a_key_has_a_rate_and_a_quota(images: ImageHarness) -> None:
    names = AccessKeys(images.keys.tag)
    limits = KeyLimits(names.rate("k"), names.active("k"), 60_000_000, 2, 3)
    hasty = ADMISSION._replace(limits=limits)
    for _ in range(2):
        image_id = await images.create()
        wanted = uploaded(image_id, await images.claim(image_id))
        assert (await images.store.submit(wanted, hasty)).answer is OK
    image_id = await images.create()
    wanted = uploaded(image_id, await images.claim(image_id))
    async with images.unchanged():
        slower = await images.store.submit(wanted, hasty)
        assert slower.answer is ImageAnswer.RATE
        assert 0 < slower.facts["wait_ms"] <= 60_000
        many = await images.store.submit(
            wanted, ADMISSION._replace(limits=limits._replace(interval_us=0, max_jobs=2))
        )
        assert (many.answer, many.facts) == (ImageAnswer.QUOTA, {"active": 2})
    patient = ADMISSION._replace(limits=limits._replace(interval_us=0))
    assert (await images.store.submit(wanted, patient)).answer is OK
    assert await images.client.zcard(limits.active_key) == 3
    assert await images.without_ttl() == []


async def test_an_existing_job_id_creates_no_job(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id)
    wanted = uploaded(image_id, upload_id)
    for key in (images.jobs.job, images.jobs.events, images.jobs.lease):
        await images.client.set(key(wanted.job_id), "x", ex=100)
        async with images.unchanged():
            with pytest.raises(CorruptKey):
                await images.store.submit(wanted, ADMISSION)
        await images.client.delete(key(wanted.job_id))
    assert (await images.store.submit(wanted, ADMISSION)).answer is OK
