"""SUCCEED, FAIL and REPAIR: an upload ends once, in status, record and result stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from common import codec
from common.contracts.images import RESULTS_KEPT, ErrorCode, Stage
from common.features.images.store import MOST_MESSAGE_CHARS
from common.features.images.types import ImageOutcome, ProcessingAttempt, ProcessingFailure
from tests.support.store.images import (
    ALREADY,
    FAILED,
    FAILURE_FIELDS,
    LOST,
    OK,
    RECORD_TTL_S,
    RESULT_FIELDS,
    STATUS_TTL_S,
    ImageHarness,
    new_image,
    processed,
    result_fields,
)

ENDINGS: dict[str, Callable[[ImageHarness, ProcessingAttempt], Awaitable[ImageOutcome]]] = {
    "succeed": lambda images, held: images.succeed(held),
    "fail": lambda images, held: images.fail(held),
    "repair": lambda images, held: images.store.repair(
        held.image_id, held.upload_id, result_fields(held.image_id)
    ),
}


@pytest.mark.parametrize("ending", ["succeed", "fail"])
async def test_an_end_has_the_fields_of_the_contract_as_text(
    images: ImageHarness, ending: str
) -> None:
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
async def test_the_first_end_counts_and_later_ones_get_its_outcome(
    images: ImageHarness, first: str
) -> None:
    held = await images.processing()
    outcome = await ENDINGS[first](images, held)
    async with images.unchanged():
        for second in ENDINGS.values():
            late = await second(images, held)
            assert (late.answer, late.facts) == (ALREADY, outcome.facts)
        assert (await images.store.advance(held, Stage.UPLOADING)).answer is ALREADY


@pytest.mark.parametrize("ending", ["succeed", "fail"])
async def test_a_superseded_attempt_cannot_end_an_image(images: ImageHarness, ending: str) -> None:
    first = await images.processing()
    job_id = (await images.record(first.image_id))["job_id"]
    second = await images.hold(first.image_id, first.upload_id, job_id, attempt=2)
    async with images.unchanged():
        assert (await ENDINGS[ending](images, first)).answer is LOST
        await images.client.delete(images.jobs.lease(job_id))
        assert (await ENDINGS[ending](images, first)).answer is LOST
        await images.hold(first.image_id, first.upload_id, job_id, attempt=2)
    outcome = await ENDINGS[ending](images, second)
    assert outcome.answer is OK
    # Now the first one may read the outcome, and still writes nothing.
    async with images.unchanged():
        assert await ENDINGS[ending](images, first) == (ALREADY, outcome.facts)


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


@pytest.mark.parametrize("endings", [["succeed"] * 20, ["succeed", "fail"] * 10, ["fail"] * 20])
async def test_of_concurrent_ends_one_counts(images: ImageHarness, endings: list[str]) -> None:
    held = await images.processing()
    other = ImageHarness(images.backend, images.jobs)
    outcomes = await asyncio.gather(
        *(ENDINGS[ending](images if at % 2 else other, held) for at, ending in enumerate(endings))
    )
    await other.close()
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert len(await images.entries()) == 1


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
    record = await images.record(held.image_id)
    assert (record["status"], record["result_entry_id"]) == ("processed", entry_id)
    assert await images.stage(held.image_id) == ("done", "100")


async def test_a_deleted_image_leaves_no_keys(doubting: ImageHarness) -> None:
    made = new_image(tenant="acme")
    await doubting.store.create(made)
    upload_id = await doubting.claim(made.image_id)
    await doubting.submit(made.image_id, upload_id)
    await doubting.store.delete(made.image_id)
    left = {key for key in await doubting.client.keys("*") if b"job" not in key}
    assert left == {doubting.keys.deleted(made.image_id).encode()}
