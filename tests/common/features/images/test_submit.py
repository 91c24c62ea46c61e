"""SUBMIT: the core job of an upload, its limits, and the image afterwards."""

from __future__ import annotations

import asyncio

import pytest

from common import codec
from common.contracts.access import AccessKeys
from common.errors import CorruptKey
from common.features.images.types import ImageAnswer
from common.jobs.limits import AdmissionLimits, KeyLimits
from tests.common.features.images.kit import (
    ADMISSION,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    Gallery,
    fresh_upload,
    uploaded,
)


async def test_the_job_is_a_core_job_with_ids_only(gallery: Gallery) -> None:
    image_id = await gallery.create(tenant="acme")
    upload_id = await gallery.claim(image_id)
    wanted = uploaded(image_id, upload_id)
    made = await gallery.store.submit(wanted, ADMISSION)
    assert (made.answer, made.facts) == (OK, {"job_id": wanted.job_id})
    [(_, message)] = await gallery.client.xrange(gallery.jobs.queue)
    payload = {"tool": "image.process", "args": {"image_id": image_id, "upload_id": upload_id}}
    assert (message[b"job_id"].decode(), message[b"task"]) == (wanted.job_id, b"tool")
    assert codec.loads(message[b"payload"]) == payload
    job = await gallery.client.hgetall(gallery.jobs.job(wanted.job_id))
    assert (job[b"status"], job[b"task"], job[b"ttl_s"]) == (b"queued", b"tool", b"600")
    assert codec.loads(job[b"payload"]) == payload
    lease = await gallery.client.hgetall(gallery.jobs.lease(wanted.job_id))
    assert lease == {b"attempt": b"0", b"options": b'{"tenant":"acme"}'}
    events = await gallery.client.xrange(gallery.jobs.events(wanted.job_id))
    assert [fields[b"type"] for _, fields in events] == [b"queued"]
    for key in (gallery.jobs.job, gallery.jobs.lease, gallery.jobs.events):
        assert 590 < await gallery.client.ttl(key(wanted.job_id)) <= 600


async def test_a_job_without_a_tenant_has_no_options(gallery: Gallery) -> None:
    image_id = await gallery.create()
    wanted = uploaded(image_id, await gallery.claim(image_id))
    await gallery.store.submit(wanted, ADMISSION)
    lease = await gallery.client.hgetall(gallery.jobs.lease(wanted.job_id))
    assert lease == {b"attempt": b"0"}


async def test_the_image_is_processing_and_kept_longer(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    await gallery.shorten(image_id)
    wanted = uploaded(image_id, upload_id)
    await gallery.store.submit(wanted, ADMISSION)
    record = await gallery.record(image_id)
    assert (record["status"], record["upload_id"]) == ("processing", upload_id)
    assert (record["job_id"], record["uploaded_type"]) == (wanted.job_id, "image/jpeg")
    assert (record["source_bytes"], record["source_sha256"]) == ("1234", "ab" * 32)
    assert "upload_deadline_ms" not in record
    assert await gallery.stage(image_id) == ("queued", "0")
    assert await gallery.guard(image_id) == b"claimed"
    assert await gallery.ttls(image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert await gallery.under_way() == [image_id]
    assert await gallery.without_ttl() == []


async def test_submitting_restores_a_lost_guard(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    await gallery.client.delete(gallery.keys.upload(image_id))
    await gallery.submit(image_id, upload_id)
    assert await gallery.guard(image_id) == b"claimed"
    assert (await gallery.ttls(image_id))[2] == STATUS_TTL_S


async def test_a_lost_reply_creates_one_job(doubting: Gallery) -> None:
    image_id = await doubting.create()
    wanted = uploaded(image_id, await doubting.claim(image_id))
    made = await doubting.store.submit(wanted, ADMISSION)
    assert (made.answer, made.facts) == (OK, {"job_id": wanted.job_id})
    assert await doubting.client.xlen(doubting.jobs.queue) == 1


async def test_an_upload_has_one_job_whatever_its_id(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    outcomes = await asyncio.gather(
        *(gallery.store.submit(uploaded(image_id, upload_id), ADMISSION) for _ in range(20))
    )
    assert {outcome.answer for outcome in outcomes} == {OK}
    assert len({outcome.facts["job_id"] for outcome in outcomes}) == 1
    assert await gallery.client.xlen(gallery.jobs.queue) == 1


async def test_a_superseded_upload_creates_no_job(gallery: Gallery) -> None:
    image_id = await gallery.create()
    free = await gallery.create()
    await gallery.claim(image_id)
    before = await gallery.snapshot()
    for upload in (uploaded(image_id, fresh_upload()), uploaded(free, fresh_upload())):
        assert (await gallery.store.submit(upload, ADMISSION)).answer is LOST
    gone = uploaded("nobody", fresh_upload())
    assert (await gallery.store.submit(gone, ADMISSION)).answer is MISSING
    assert await gallery.snapshot() == before


async def test_a_full_queue_refuses_and_the_upload_keeps_its_guard(gallery: Gallery) -> None:
    image_id = await gallery.create()
    wanted = uploaded(image_id, await gallery.claim(image_id))
    await gallery.processing()
    before = await gallery.snapshot()
    full = await gallery.store.submit(wanted, AdmissionLimits("workers", 1, 600))
    assert (full.answer, full.facts) == (ImageAnswer.FULL, {"backlog": 1})
    assert await gallery.snapshot() == before
    assert (await gallery.store.submit(wanted, ADMISSION)).answer is OK


async def test_a_key_has_a_rate_and_a_quota(gallery: Gallery) -> None:
    names = AccessKeys(gallery.keys.tag)
    limits = KeyLimits(names.rate("k"), names.active("k"), 60_000_000, 2, 3)
    hasty = ADMISSION._replace(limits=limits)
    for _ in range(2):
        image_id = await gallery.create()
        wanted = uploaded(image_id, await gallery.claim(image_id))
        assert (await gallery.store.submit(wanted, hasty)).answer is OK
    image_id = await gallery.create()
    wanted = uploaded(image_id, await gallery.claim(image_id))
    before = await gallery.snapshot()
    slower = await gallery.store.submit(wanted, hasty)
    assert slower.answer is ImageAnswer.RATE
    assert 0 < slower.facts["wait_ms"] <= 60_000
    many = await gallery.store.submit(
        wanted, ADMISSION._replace(limits=limits._replace(interval_us=0, max_jobs=2))
    )
    assert (many.answer, many.facts) == (ImageAnswer.QUOTA, {"active": 2})
    assert await gallery.snapshot() == before
    patient = ADMISSION._replace(limits=limits._replace(interval_us=0))
    assert (await gallery.store.submit(wanted, patient)).answer is OK
    assert await gallery.client.zcard(limits.active_key) == 3
    assert await gallery.without_ttl() == []


async def test_an_existing_job_id_creates_no_job(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    wanted = uploaded(image_id, upload_id)
    for key in (gallery.jobs.job, gallery.jobs.events, gallery.jobs.lease):
        await gallery.client.set(key(wanted.job_id), "x", ex=100)
        before = await gallery.snapshot()
        with pytest.raises(CorruptKey):
            await gallery.store.submit(wanted, ADMISSION)
        assert await gallery.snapshot() == before
        await gallery.client.delete(key(wanted.job_id))
    assert (await gallery.store.submit(wanted, ADMISSION)).answer is OK
