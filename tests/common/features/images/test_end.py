"""SUCCEED, FAIL and REPAIR: an upload ends once, in status, record and result stream together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from common import codec
from common.contracts.images import RESULTS_KEPT, ErrorCode, Stage
from common.features.images.store import MOST_MESSAGE_CHARS
from common.features.images.types import ImageOutcome, ProcessingAttempt, ProcessingFailure
from tests.common.features.images.kit import (
    ALREADY,
    FAILED,
    FAILURE_FIELDS,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    RESULT_FIELDS,
    STATUS_TTL_S,
    Gallery,
    processed,
    result_fields,
)

ENDINGS: dict[str, Callable[[Gallery, ProcessingAttempt], Awaitable[ImageOutcome]]] = {
    "succeed": lambda gallery, held: gallery.succeed(held),
    "fail": lambda gallery, held: gallery.fail(held),
    "repair": lambda gallery, held: gallery.store.repair(
        held.image_id, held.upload_id, result_fields(held.image_id)
    ),
}


async def test_a_success_has_the_fields_of_the_contract_as_text(gallery: Gallery) -> None:
    held = await gallery.processing()
    outcome = await gallery.succeed(held)
    made = processed(held.image_id)
    [(entry_id, fields)] = await gallery.entries()
    assert list(fields) == RESULT_FIELDS
    at = fields.pop("processed_at")
    assert at == (await gallery.status(held.image_id))["updated_at"]
    assert fields == {
        "image_id": held.image_id,
        "status": "processed",
        "storage_key": f"images/{held.image_id}.webp",
        "sha256": made.sha256,
        "etag": made.etag,
        "file_size": "245760",
        "content_type": "image/webp",
        "original_width": "4032",
        "original_height": "3024",
        "processed_width": "1920",
        "processed_height": "1440",
    }
    assert outcome == (OK, {"outcome": {**fields, "processed_at": at}})
    record = await gallery.record(held.image_id)
    assert codec.loads(record["outcome"].encode()) == outcome.facts["outcome"]
    assert (record["details"], record["result_entry_id"]) == (made.details.decode(), entry_id)


async def test_a_failure_has_the_fields_of_the_contract(gallery: Gallery) -> None:
    held = await gallery.processing()
    outcome = await gallery.fail(held)
    [(entry_id, fields)] = await gallery.entries()
    assert list(fields) == FAILURE_FIELDS
    assert (fields["status"], fields["error_code"]) == ("failed", "VALIDATION_FAILED")
    assert fields["error_message"] == "file too large"
    assert outcome == (OK, {"outcome": fields})
    record = await gallery.record(held.image_id)
    assert codec.loads(record["outcome"].encode()) == fields
    assert (record["details"], record["result_entry_id"]) == (FAILED.details.decode(), entry_id)


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_ended_image_is_kept_and_not_in_flight(gallery: Gallery, ending: str) -> None:
    held = await gallery.processing()
    await gallery.store.advance(held, Stage.UPLOADING)
    await gallery.shorten(held.image_id)
    assert (await ENDINGS[ending](gallery, held)).answer is OK
    assert await gallery.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert await gallery.under_way() == []
    assert await gallery.guard(held.image_id) == b"claimed"
    shown = await gallery.status(held.image_id)
    assert ("error" in shown) == (ending == "fail")
    assert await gallery.without_ttl() == []


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
async def test_the_first_end_counts_and_later_ones_get_its_outcome(
    real_gallery: Gallery, first: str, second: str
) -> None:
    gallery = real_gallery
    held = await gallery.processing()
    outcome = await ENDINGS[first](gallery, held)
    before = await gallery.snapshot()
    late = await ENDINGS[second](gallery, held)
    assert (late.answer, late.facts) == (ALREADY, outcome.facts)
    assert (await gallery.store.advance(held, Stage.UPLOADING)).answer is ALREADY
    assert await gallery.snapshot() == before


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_lost_reply_writes_one_entry(doubting: Gallery, ending: str) -> None:
    held = await doubting.processing()
    outcome = await ENDINGS[ending](doubting, held)
    [(_, fields)] = await doubting.entries()
    assert (outcome.answer, outcome.facts) == (ALREADY, {"outcome": fields})


@pytest.mark.parametrize("ending", ["succeed", "fail"])
async def test_a_superseded_attempt_cannot_end_an_image(gallery: Gallery, ending: str) -> None:
    first = await gallery.processing()
    job_id = (await gallery.record(first.image_id))["job_id"]
    second = await gallery.hold(first.image_id, first.upload_id, job_id, attempt=2)
    before = await gallery.snapshot()
    assert (await ENDINGS[ending](gallery, first)).answer is LOST
    await gallery.client.delete(gallery.jobs.lease(job_id))
    assert (await ENDINGS[ending](gallery, first)).answer is LOST
    await gallery.hold(first.image_id, first.upload_id, job_id, attempt=2)
    assert await gallery.snapshot() == before
    outcome = await ENDINGS[ending](gallery, second)
    assert outcome.answer is OK
    # Now the first one may read the outcome, and still writes nothing.
    before = await gallery.snapshot()
    assert await ENDINGS[ending](gallery, first) == (ALREADY, outcome.facts)
    assert await gallery.snapshot() == before


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_superseded_upload_cannot_end_an_image(gallery: Gallery, ending: str) -> None:
    held = await gallery.processing()
    claimed = await gallery.create()
    upload_id = await gallery.claim(claimed)
    before = await gallery.snapshot()
    for wrong, answer in (
        (held._replace(upload_id="0" * 16, fence=None), LOST),
        (held._replace(upload_id="", fence=None), LOST),
        (ProcessingAttempt(claimed, upload_id), LOST),
        (ProcessingAttempt("nobody", upload_id), MISSING),
    ):
        assert (await ENDINGS[ending](gallery, wrong)).answer is answer
    assert await gallery.snapshot() == before


async def test_a_repair_needs_no_attempt(gallery: Gallery) -> None:
    held = await gallery.processing()
    job_id = (await gallery.record(held.image_id))["job_id"]
    await gallery.client.delete(gallery.jobs.lease(job_id))
    timed_out = ProcessingFailure(ErrorCode.TIMEOUT, "it took too long")
    outcome = await gallery.store.fail(held._replace(fence=None), timed_out)
    assert outcome.answer is OK
    assert (await gallery.status(held.image_id))["error"] == "it took too long"


@pytest.mark.parametrize("endings", [["succeed"] * 20, ["succeed", "fail"] * 10, ["fail"] * 20])
async def test_of_concurrent_ends_one_counts(gallery: Gallery, endings: list[str]) -> None:
    held = await gallery.processing()
    other = Gallery(gallery.backend, gallery.jobs)
    outcomes = await asyncio.gather(
        *(ENDINGS[ending](gallery if at % 2 else other, held) for at, ending in enumerate(endings))
    )
    await other.close()
    assert [outcome.answer for outcome in outcomes].count(OK) == 1
    assert len(await gallery.entries()) == 1


async def test_a_long_or_invalid_message_is_cut(gallery: Gallery) -> None:
    held = await gallery.processing()
    await gallery.store.fail(
        held, ProcessingFailure(ErrorCode.DECODE_FAILED, "\udc80" + "é" * 5000)
    )
    [(_, fields)] = await gallery.entries()
    assert fields["error_message"] == "?" + "é" * (MOST_MESSAGE_CHARS - 1)


async def test_the_result_stream_is_trimmed(real_gallery: Gallery) -> None:
    gallery = real_gallery
    pipe = gallery.client.pipeline(transaction=False)
    for _ in range(3 * RESULTS_KEPT):
        pipe.xadd(gallery.keys.results, {"x": "y" * 50})
    await pipe.execute()
    await gallery.succeed(await gallery.processing())
    assert RESULTS_KEPT <= await gallery.client.xlen(gallery.keys.results) < 2 * RESULTS_KEPT


async def test_a_repair_uses_the_result_of_the_job(gallery: Gallery) -> None:
    held = await gallery.processing()
    fields = result_fields(held.image_id)
    outcome = await gallery.store.repair(held.image_id, held.upload_id, fields)
    assert outcome == (OK, {"outcome": fields})
    [(entry_id, written)] = await gallery.entries()
    assert written == fields
    record = await gallery.record(held.image_id)
    assert (record["status"], record["result_entry_id"]) == ("processed", entry_id)
    assert await gallery.stage(held.image_id) == ("done", "100")


async def test_a_repair_with_an_invalid_result_is_rejected(gallery: Gallery) -> None:
    held = await gallery.processing()
    before = await gallery.snapshot()
    fields = result_fields(held.image_id)
    for wrong in ({}, {**fields, "more": "x"}, {**fields, "image_id": "another"}):
        with pytest.raises(ValueError):
            await gallery.store.repair(held.image_id, held.upload_id, wrong)
    assert await gallery.snapshot() == before


async def test_a_deleted_image_cannot_end(gallery: Gallery) -> None:
    held = await gallery.processing()
    await gallery.store.advance(held, Stage.ENCODING)
    await gallery.store.delete(held.image_id)
    before = await gallery.snapshot()
    assert (await gallery.store.advance(held, Stage.UPLOADING)).answer is MISSING
    for ending in ENDINGS.values():
        assert (await ending(gallery, held)).answer is MISSING
    assert await gallery.snapshot() == before
