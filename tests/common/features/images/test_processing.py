"""SUBMIT, ADVANCE, SUCCEED, FAIL and REPAIR: the job of an upload, its stages, and its end."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from sluice.common import codec
from sluice.common.contracts.access import AccessKeys
from sluice.common.contracts.images import RESULTS_KEPT, ErrorCode, Stage
from sluice.common.features.images.store import MOST_MESSAGE_CHARS
from sluice.common.features.images.types import (
    ImageAnswer,
    ProcessingFailure,
)
from sluice.common.jobs.limits import AdmissionLimits, KeyLimits
from tests.common.features.images.test_operations import CALLS
from tests.support.store.images import (
    ADMISSION,
    ALREADY,
    FAILED,
    FAILURE_FIELDS,
    OK,
    RECORD_TTL_S,
    RESULT_FIELDS,
    SHOWN,
    STAGES,
    STATUS_TTL_S,
    ImageHarness,
    new_image,
    processed,
    result_fields,
    uploaded,
)
from tests.support.waiting import eventually


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


async def test_an_upload_has_one_job_with_any_id(images: ImageHarness) -> None:
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
    """They share their code with those of ENQUEUE (test_enqueue.py)."""
    names, made = AccessKeys(images.keys.tag), [await images.create() for _ in range(2)]
    first, second = [uploaded(image_id, await images.claim(image_id)) for image_id in made]
    limits = KeyLimits(names.rate("k"), names.active("k"), 60_000_000, 1, 2)
    assert (await images.store.submit(first, ADMISSION._replace(limits=limits))).answer is OK
    full = limits._replace(interval_us=0, max_jobs=1)
    async with images.unchanged():
        slower = await images.store.submit(second, ADMISSION._replace(limits=limits))
        assert slower.answer is ImageAnswer.RATE
        assert 0 < slower.facts["wait_ms"] <= 60_000
        many = await images.store.submit(second, ADMISSION._replace(limits=full))
        assert (many.answer, many.facts) == (ImageAnswer.QUOTA, {"active": 1})
    assert await images.client.zcard(limits.active_key) == 1
    assert await images.without_ttl() == []


async def test_an_existing_job_id_creates_no_job(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id)
    wanted = uploaded(image_id, upload_id)
    for key in (images.jobs.job, images.jobs.events, images.jobs.lease):
        await images.client.set(key(wanted.job_id), "x", ex=100)
        async with images.refuses():
            await images.store.submit(wanted, ADMISSION)
        await images.client.delete(key(wanted.job_id))
    assert (await images.store.submit(wanted, ADMISSION)).answer is OK


# -- ADVANCE: stages only go forward, only for the current attempt, and are published -------------


async def test_each_stage_has_its_progress(images: ImageHarness) -> None:
    held = await images.processing()
    for stage, shown in zip(STAGES, SHOWN, strict=True):
        await images.shorten(held.image_id)
        assert (await images.store.advance(held, stage)).answer is OK
        assert await images.stage(held.image_id) == (stage.value, shown)
        assert set(await images.status(held.image_id)) == {"stage", "progress", "updated_at"}
        assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert (await images.record(held.image_id))["status"] == "processing"
    async with images.unchanged():  # other stages need a result
        for stage in (Stage.QUEUED, Stage.DONE, Stage.FAILED):
            with pytest.raises(ValueError, match=stage.value):
                await images.store.advance(held, stage)
    # An expired status is restored completely.
    held = await images.processing()
    await images.client.delete(images.keys.status(held.image_id))
    assert (await images.store.advance(held, Stage.DECODING)).answer is OK
    assert set(await images.status(held.image_id)) == {"stage", "progress", "updated_at"}


@pytest.mark.real_redis
async def test_it_never_goes_back(images: ImageHarness) -> None:
    for there, wanted in itertools.product(range(5), range(5)):
        held = await images.processing()
        await images.store.advance(held, STAGES[there])
        before = await images.record(held.image_id), await images.status(held.image_id)
        outcome = await images.store.advance(held, STAGES[wanted])
        assert outcome.answer is (OK if wanted > there else ALREADY), (there, wanted)
        last = max(there, wanted)
        assert await images.stage(held.image_id) == (STAGES[last].value, SHOWN[last])
        if wanted <= there:
            after = await images.record(held.image_id), await images.status(held.image_id)
            assert after == before, (there, wanted)


async def test_a_second_attempt_writes_nothing_until_it_is_further(images: ImageHarness) -> None:
    first = await images.processing()
    await images.store.advance(first, Stage.ENCODING)
    job_id = (await images.record(first.image_id))["job_id"]
    second = await images.hold(first.image_id, first.upload_id, job_id, attempt=2)
    seen = []
    for stage in STAGES:
        seen.append((await images.store.advance(second, stage)).answer)
        assert int((await images.status(first.image_id))["progress"]) >= 75
    assert seen == [ALREADY, ALREADY, ALREADY, ALREADY, OK]


@pytest.mark.real_redis
async def test_a_hint_names_the_changed_image(images: ImageHarness) -> None:
    heard: list[bytes] = []
    wire = images.backend.wire(on_message=lambda message: heard.extend(message.split()))
    await wire.execute_command("SUBSCRIBE", images.jobs.hints)
    held = await images.processing()
    name = images.keys.status(held.image_id).encode()
    await eventually(lambda: set(heard) == {name})
    for call in (
        lambda: images.store.advance(held, Stage.VALIDATING),
        lambda: images.fail(held),
        lambda: images.store.reopen(held.image_id),
        lambda: images.store.delete(held.image_id),
    ):
        heard.clear()
        await call()
        await eventually(lambda: heard == [name])


# -- SUCCEED, FAIL and REPAIR: an upload ends once, in status, record and result stream -----------


ENDINGS = {name: CALLS[name] for name in ("succeed", "fail", "repair")}


@pytest.mark.parametrize("ending", ["succeed", "fail"])
async def test_an_end_has_the_fields_of_the_contract(images: ImageHarness, ending: str) -> None:
    held = await images.processing()
    outcome = await ENDINGS[ending](images, held)
    [(entry_id, fields)] = await images.entries()
    assert outcome == (OK, {"outcome": fields})
    record = await images.record(held.image_id)
    assert codec.loads(record["outcome"].encode()) == fields
    assert record["result_entry_id"] == entry_id
    assert record["status"] == fields["status"]
    assert {name: record[name] for name in fields} == fields
    made, shown = processed(held.image_id), await images.status(held.image_id)
    at = shown.pop("updated_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", at)
    if ending == "fail":
        assert shown == {"stage": "failed", "progress": "-1", "error": "file too large"}
        values = (held.image_id, "failed", "VALIDATION_FAILED", "file too large", at)
        assert list(fields.items()) == list(zip(FAILURE_FIELDS, values, strict=True))
        assert record["details"] == FAILED.details.decode()
    else:
        assert shown == {"stage": "done", "progress": "100"}
        stored = f"images/{held.image_id}.webp"
        values = (held.image_id, "processed", stored, made.sha256, made.etag, "245760")
        values += ("image/webp", "4032", "3024", "1920", "1440", at)
        assert list(fields.items()) == list(zip(RESULT_FIELDS, values, strict=True))
        assert record["details"] == made.details.decode()


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_ended_image_is_kept_and_not_in_flight(images: ImageHarness, ending: str) -> None:
    held = await images.processing()
    await images.store.advance(held, Stage.UPLOADING)
    await images.shorten(held.image_id)
    assert (await ENDINGS[ending](images, held)).answer is OK
    assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert await images.under_way() == []
    assert await images.guard(held.image_id) == b"claimed"
    shown = await images.status(held.image_id)
    assert ("error" in shown) == (ending == "fail")
    assert await images.without_ttl() == []


@pytest.mark.real_redis
@pytest.mark.parametrize("first", ENDINGS)
async def test_later_ends_get_the_outcome_of_the_first(images: ImageHarness, first: str) -> None:
    """Also a superseded attempt may read the outcome, but writes nothing."""
    superseded = await images.processing()
    job_id = (await images.record(superseded.image_id))["job_id"]
    held = await images.hold(superseded.image_id, superseded.upload_id, job_id, attempt=2)
    outcome = await ENDINGS[first](images, held)
    async with images.unchanged():
        for attempt, second in itertools.product((held, superseded), ENDINGS.values()):
            late = await second(images, attempt)
            assert (late.answer, late.facts) == (ALREADY, outcome.facts)
        assert (await images.store.advance(held, Stage.UPLOADING)).answer is ALREADY


async def test_a_timeout_needs_no_attempt(images: ImageHarness) -> None:
    held = await images.processing()
    job_id = (await images.record(held.image_id))["job_id"]
    await images.client.delete(images.jobs.lease(job_id))
    message = "\udc80" + "é" * 5000  # it is cut, and invalid characters are replaced
    timed_out = ProcessingFailure(ErrorCode.TIMEOUT, message)
    assert (await images.store.fail(held._replace(fence=None), timed_out)).answer is OK
    written = "?" + "é" * (MOST_MESSAGE_CHARS - 1)
    assert (await images.status(held.image_id))["error"] == written
    assert (await images.entries())[0][1]["error_message"] == written


@pytest.mark.real_redis
async def test_the_result_stream_is_trimmed(images: ImageHarness) -> None:
    pipe = images.client.pipeline(transaction=False)
    for _ in range(3 * RESULTS_KEPT):
        pipe.xadd(images.keys.results, {"x": "y" * 50})
    await pipe.execute()
    await images.succeed(await images.processing())
    assert RESULTS_KEPT <= await images.client.xlen(images.keys.results) < 2 * RESULTS_KEPT


async def test_a_repair_uses_the_result_of_the_job(images: ImageHarness) -> None:
    held = await images.processing()
    fields = result_fields(held.image_id)
    async with images.unchanged():
        for wrong in ({}, {**fields, "more": "x"}, {**fields, "image_id": "another"}):
            with pytest.raises(ValueError):
                await images.store.repair(held.image_id, held.upload_id, wrong)
    outcome = await images.store.repair(held.image_id, held.upload_id, fields)
    assert outcome == (OK, {"outcome": fields})
    [(entry_id, written)] = await images.entries()
    assert written == fields
    await images.has(held.image_id, status="processed", result_entry_id=entry_id)
    assert await images.stage(held.image_id) == ("done", "100")


async def test_a_deleted_image_leaves_no_keys(doubting_images: ImageHarness) -> None:
    made = new_image(tenant="acme")
    await doubting_images.store.create(made)
    upload_id = await doubting_images.claim(made.image_id)
    await doubting_images.submit(made.image_id, upload_id)
    await doubting_images.store.delete(made.image_id)
    left = {key for key in await doubting_images.client.keys("*") if b"job" not in key}
    assert left == {doubting_images.keys.deleted(made.image_id).encode()}
