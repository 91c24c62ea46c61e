"""PERSIST and DEAD: results of third-party pipelines are written once and acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common import codec
from common.contracts.images import DEAD_RESULTS_KEPT, Stage
from tests.support.store.images import (
    ALREADY,
    GROUP,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    ImageHarness,
    failure_fields,
    result_fields,
    texts,
)


async def persist_entry(images: ImageHarness, fields: dict[str, str]) -> str:
    """Add a third-party entry and persist it; returns its id."""
    entry_id = await images.third_party_entry(fields)
    assert (await images.store.persist(entry_id, fields, GROUP)).answer is OK
    return entry_id


@pytest.mark.parametrize("status", ["processed", "failed"])
async def test_a_result_becomes_the_record(images: ImageHarness, status: str) -> None:
    image_id = await images.create()
    await images.shorten(image_id)
    fields = result_fields(image_id) if status == "processed" else failure_fields(image_id)
    entry_id = await persist_entry(images, fields)
    record = await images.record(image_id)
    assert {name: record[name] for name in fields} == fields
    assert (record["status"], record["result_entry_id"]) == (status, entry_id)
    assert codec.loads(record["outcome"].encode()) == fields
    shown = await images.status(image_id)
    assert shown["stage"] == ("done" if status == "processed" else "failed")
    assert shown.get("error") == fields.get("error_message")
    assert await images.pending() == 0
    assert len(await images.entries()) == 1  # the result is not published twice
    assert await images.ttls(image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)


async def test_results_of_sluice_are_already_in_the_record(images: ImageHarness) -> None:
    for end in (images.succeed, images.fail):
        held = await images.processing()
        await end(held)
        (entry_id, fields) = (await images.entries())[-1]
        async with images.unchanged():
            assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY


async def test_a_redelivery_changes_nothing_and_is_acknowledged(images: ImageHarness) -> None:
    image_id = await images.create()
    fields = result_fields(image_id)
    entry_id = await persist_entry(images, fields)
    async with images.unchanged():
        # Delivered again, as after a crash between the write and a separate acknowledgement.
        await images.client.xgroup_setid(images.keys.results, GROUP, "0")
        await images.client.xreadgroup(GROUP, "api-2", {images.keys.results: ">"})
        assert await images.pending() == 1
        assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY
        assert await images.pending() == 0
    # So does another entry with equal content.
    held = await images.processing()
    await images.succeed(held, "same")
    record = await images.record(held.image_id)
    fields = result_fields(held.image_id, "same")
    entry_id = await images.third_party_entry(fields)
    assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    assert await images.record(held.image_id) == record
    assert (await images.client.xpending(images.keys.results, GROUP))["pending"] == 1  # Sluice's


async def test_a_later_result_replaces_an_earlier_one(images: ImageHarness) -> None:
    image_id = await images.create()
    first, second = failure_fields(image_id), result_fields(image_id)
    earlier, later = await images.third_party_entry(first), await images.third_party_entry(second)
    assert (await images.store.persist(later, second, GROUP)).answer is OK
    async with images.unchanged():
        assert (await images.store.persist(earlier, first, GROUP)).answer is ALREADY
    assert await images.pending() == 0
    third = await persist_entry(images, first)
    record = await images.record(image_id)
    assert (record["status"], record["result_entry_id"]) == ("failed", third)
    assert not {"sha256", "etag", "storage_key", "processed_at"} & set(record)


async def test_a_result_without_an_image_is_acknowledged(images: ImageHarness) -> None:
    for fields in (result_fields("nobody"), failure_fields("nobody")):
        entry_id = await images.third_party_entry(fields)
        async with images.unchanged():
            assert (await images.store.persist(entry_id, fields, GROUP)).answer is MISSING
    assert await images.pending() == 0


async def test_a_result_of_an_earlier_upload_is_not_used(images: ImageHarness) -> None:
    """Whether the next upload has not begun, is in progress, waits for its job or has ended."""
    image_id = await images.create()
    fields = failure_fields(image_id)
    failed = await persist_entry(images, fields)
    late = await images.third_party_entry(result_fields(image_id))  # that pipeline continued
    await images.store.reopen(image_id)
    for step in ("open", "claimed", "processing", "ended"):
        if step == "claimed":
            upload_id = await images.claim(image_id)
        elif step == "processing":
            held = await images.submit(image_id, upload_id)
        elif step == "ended":
            await images.succeed(held, "of the second upload")
        async with images.unchanged():
            for entry_id, entry in ((late, result_fields(image_id)), (failed, fields)):
                assert (await images.store.persist(entry_id, entry, GROUP)).answer is ALREADY


async def test_a_reopened_image_takes_results_of_its_upload_only(images: ImageHarness) -> None:
    held = await images.failed()
    await images.store.reopen(held.image_id)
    fields = result_fields(held.image_id)
    entry_id = await images.third_party_entry(fields)
    async with images.unchanged():  # nothing was uploaded yet, so there can be no result
        assert (await images.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    await images.client.set(images.keys.upload(held.image_id), "claimed", ex=3600)
    await persist_entry(images, fields)  # of a third-party upload
    assert (await images.record(held.image_id))["status"] == "processed"


async def test_a_third_party_result_can_end_a_running_job(images: ImageHarness) -> None:
    held = await images.processing()
    fields = result_fields(held.image_id)
    await persist_entry(images, fields)
    assert await images.under_way() == []
    assert await images.succeed(held) == (ALREADY, {"outcome": fields})
    assert (await images.store.advance(held, Stage.DECODING)).answer is ALREADY
    image_id = await images.create()  # or an upload in progress
    upload_id = await images.claim(image_id)
    await persist_entry(images, result_fields(image_id))
    assert (await images.store.extend_claim(image_id, upload_id, 1000)).answer is LOST
    assert (await images.store.release(image_id, upload_id)).answer is LOST


async def test_without_a_group_there_is_nothing_to_acknowledge(images: ImageHarness) -> None:
    image_id = await images.create()
    fields = result_fields(image_id)
    async with images.refuses(ValueError, match="fields"):
        await images.store.persist("1-1", {**failure_fields(image_id), "more": "x"}, GROUP)
    entry_id = (await images.client.xadd(images.keys.results, fields)).decode()
    assert (await images.store.persist(entry_id, fields, GROUP)).answer is OK


async def letters(images: ImageHarness) -> list[dict[str, str]]:
    return [texts(fields) for _, fields in await images.client.xrange(images.keys.dead_results)]


async def test_an_invalid_entry_is_dead_lettered_once(images: ImageHarness) -> None:
    fields = {"image_id": "abc", "status": "odd"}
    entry_id = await images.third_party_entry(fields)
    async with images.unchanged():  # not pending
        await images.store.dead_letter_result("1-1", fields, "odd", 1, GROUP)
        await images.store.dead_letter_result("1-1", fields, "odd", 1, "no-such-group")
    call = images.store.dead_letter_result
    await asyncio.gather(*(call(entry_id, fields, "invalid status", 10, GROUP) for _ in range(20)))
    [letter] = await letters(images)
    assert letter.pop("dlq_at").endswith("Z")
    assert letter == {**fields, "dlq_reason": "invalid status", "dlq_delivery_count": "10"}
    assert await images.pending() == 0


@pytest.mark.real_redis
async def test_dead_letters_are_trimmed(images: ImageHarness) -> None:
    pipe = images.client.pipeline(transaction=False)
    for _ in range(3 * DEAD_RESULTS_KEPT):
        pipe.xadd(images.keys.dead_results, {"x": "y" * 50})
    await pipe.execute()
    entry_id = await images.third_party_entry({"x": "y"})
    await images.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    kept: Any = await images.client.xlen(images.keys.dead_results)
    assert DEAD_RESULTS_KEPT <= kept < 2 * DEAD_RESULTS_KEPT
