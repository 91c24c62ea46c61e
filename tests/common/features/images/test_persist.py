"""PERSIST and DEAD: results of third-party pipelines are written once and acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common import codec
from common.contracts.images import DEAD_RESULTS_KEPT, Stage
from tests.common.features.images.kit import (
    ALREADY,
    GROUP,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    Gallery,
    failure_fields,
    result_fields,
    texts,
)


async def persist_entry(gallery: Gallery, fields: dict[str, str]) -> str:
    """Add a third-party entry and persist it; returns its id."""
    entry_id = await gallery.third_party_entry(fields)
    assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is OK
    return entry_id


@pytest.mark.parametrize("status", ["processed", "failed"])
async def test_a_result_becomes_the_record(gallery: Gallery, status: str) -> None:
    image_id = await gallery.create()
    await gallery.shorten(image_id)
    fields = result_fields(image_id) if status == "processed" else failure_fields(image_id)
    entry_id = await persist_entry(gallery, fields)
    record = await gallery.record(image_id)
    assert {name: record[name] for name in fields} == fields
    assert (record["status"], record["result_entry_id"]) == (status, entry_id)
    assert codec.loads(record["outcome"].encode()) == fields
    shown = await gallery.status(image_id)
    assert shown["stage"] == ("done" if status == "processed" else "failed")
    assert shown.get("error") == fields.get("error_message")
    assert await gallery.pending() == 0
    assert len(await gallery.entries()) == 1  # the result is not published twice
    assert await gallery.ttls(image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)


async def test_results_of_sluice_are_already_in_the_record(gallery: Gallery) -> None:
    for end in (gallery.succeed, gallery.fail):
        held = await gallery.processing()
        await end(held)
        (entry_id, fields) = (await gallery.entries())[-1]
        before = await gallery.snapshot()
        assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is ALREADY
        assert await gallery.snapshot() == before


async def test_a_redelivery_changes_nothing_and_is_acknowledged(gallery: Gallery) -> None:
    image_id = await gallery.create()
    fields = result_fields(image_id)
    entry_id = await persist_entry(gallery, fields)
    before = await gallery.snapshot()
    # Delivered again, as after a crash between the write and a separate acknowledgement.
    await gallery.client.xgroup_setid(gallery.keys.results, GROUP, "0")
    await gallery.client.xreadgroup(GROUP, "api-2", {gallery.keys.results: ">"})
    assert await gallery.pending() == 1
    assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    assert await gallery.pending() == 0
    assert await gallery.snapshot() == before


async def test_a_repeated_result_with_equal_content_changes_nothing(gallery: Gallery) -> None:
    held = await gallery.processing()
    await gallery.succeed(held, "same")
    record = await gallery.record(held.image_id)
    fields = result_fields(held.image_id, "same")
    entry_id = await gallery.third_party_entry(fields)
    assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    assert await gallery.record(held.image_id) == record
    assert (await gallery.client.xpending(gallery.keys.results, GROUP))["pending"] == 1  # Sluice's


async def test_a_later_result_replaces_an_earlier_one(gallery: Gallery) -> None:
    image_id = await gallery.create()
    first, second = failure_fields(image_id), result_fields(image_id)
    earlier, later = await gallery.third_party_entry(first), await gallery.third_party_entry(second)
    assert (await gallery.store.persist(later, second, GROUP)).answer is OK
    before = await gallery.snapshot()
    assert (await gallery.store.persist(earlier, first, GROUP)).answer is ALREADY
    assert await gallery.snapshot() == before
    assert await gallery.pending() == 0
    third = await persist_entry(gallery, first)
    record = await gallery.record(image_id)
    assert (record["status"], record["result_entry_id"]) == ("failed", third)
    assert not {"sha256", "etag", "storage_key", "processed_at"} & set(record)


async def test_a_result_without_an_image_is_acknowledged(gallery: Gallery) -> None:
    for fields in (result_fields("nobody"), failure_fields("nobody")):
        entry_id = await gallery.third_party_entry(fields)
        before = await gallery.snapshot()
        assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is MISSING
        assert await gallery.snapshot() == before
    assert await gallery.pending() == 0


async def test_a_result_of_an_earlier_upload_is_not_used(gallery: Gallery) -> None:
    """Whether the next upload has not begun, is in progress, waits for its job or has ended."""
    image_id = await gallery.create()
    fields = failure_fields(image_id)
    failed = await persist_entry(gallery, fields)
    late = await gallery.third_party_entry(result_fields(image_id))  # that pipeline continued
    await gallery.store.reopen(image_id)
    for step in ("open", "claimed", "processing", "ended"):
        if step == "claimed":
            upload_id = await gallery.claim(image_id)
        elif step == "processing":
            held = await gallery.submit(image_id, upload_id)
        elif step == "ended":
            await gallery.succeed(held, "of the second upload")
        before = await gallery.snapshot()
        for entry_id, entry in ((late, result_fields(image_id)), (failed, fields)):
            assert (await gallery.store.persist(entry_id, entry, GROUP)).answer is ALREADY
        assert await gallery.snapshot() == before


async def test_a_late_result_of_an_earlier_upload_is_not_used(
    gallery: Gallery,
) -> None:
    """Nothing was uploaded since the image was reopened, so there can be no result."""
    held = await gallery.failed()
    await gallery.store.reopen(held.image_id)
    fields = result_fields(held.image_id)
    entry_id = await gallery.third_party_entry(fields)
    before = await gallery.snapshot()
    assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    assert await gallery.snapshot() == before


async def test_a_third_party_upload_of_a_reopened_image_is_accepted(gallery: Gallery) -> None:
    held = await gallery.failed()
    await gallery.store.reopen(held.image_id)
    await gallery.client.set(gallery.keys.upload(held.image_id), "claimed", ex=3600)
    await persist_entry(gallery, result_fields(held.image_id))
    assert (await gallery.record(held.image_id))["status"] == "processed"


async def test_a_third_party_result_can_end_a_running_job(gallery: Gallery) -> None:
    held = await gallery.processing()
    fields = result_fields(held.image_id)
    await persist_entry(gallery, fields)
    assert await gallery.under_way() == []
    assert await gallery.succeed(held) == (ALREADY, {"outcome": fields})
    assert (await gallery.store.advance(held, Stage.DECODING)).answer is ALREADY


async def test_a_result_ends_an_upload_in_progress(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    await persist_entry(gallery, result_fields(image_id))
    assert (await gallery.store.extend_claim(image_id, upload_id, 1000)).answer is LOST
    assert (await gallery.store.release(image_id, upload_id)).answer is LOST


async def test_a_lost_reply_persists_once(doubting: Gallery) -> None:
    image_id = await doubting.create()
    fields = result_fields(image_id)
    entry_id = await doubting.third_party_entry(fields)
    assert (await doubting.store.persist(entry_id, fields, GROUP)).answer is ALREADY
    assert (await doubting.record(image_id))["result_entry_id"] == entry_id


async def test_concurrent_consumers_write_a_result_once(gallery: Gallery) -> None:
    image_id = await gallery.create()
    fields = result_fields(image_id)
    entry_id = await gallery.third_party_entry(fields)
    outcomes = await asyncio.gather(
        *(gallery.store.persist(entry_id, fields, GROUP) for _ in range(20))
    )
    assert [outcome.answer for outcome in outcomes].count(OK) == 1


async def test_without_a_group_there_is_nothing_to_acknowledge(gallery: Gallery) -> None:
    image_id = await gallery.create()
    fields = result_fields(image_id)
    entry_id = (await gallery.client.xadd(gallery.keys.results, fields)).decode()  # type: ignore[arg-type]
    assert (await gallery.store.persist(entry_id, fields, GROUP)).answer is OK


async def test_an_invalid_result_is_not_written(gallery: Gallery) -> None:
    image_id = await gallery.create()
    before = await gallery.snapshot()
    with pytest.raises(ValueError, match="fields"):
        await gallery.store.persist("1-1", {**failure_fields(image_id), "more": "x"}, GROUP)
    assert await gallery.snapshot() == before


# -- dead letters ------------------------------------------------------------------------------


async def letters(gallery: Gallery) -> list[dict[str, str]]:
    return [texts(fields) for _, fields in await gallery.client.xrange(gallery.keys.dead_results)]


async def test_an_invalid_entry_is_dead_lettered(gallery: Gallery) -> None:
    fields = {"image_id": "abc", "status": "odd"}
    entry_id = await gallery.third_party_entry(fields)
    await gallery.store.dead_letter_result(entry_id, fields, "invalid status", 10, GROUP)
    [letter] = await letters(gallery)
    assert letter.pop("dlq_at").endswith("Z")
    assert letter == {
        **fields,
        "dlq_reason": "invalid status",
        "dlq_delivery_count": "10",
    }
    assert await gallery.pending() == 0


async def test_a_lost_reply_writes_one_dead_letter(doubting: Gallery) -> None:
    entry_id = await doubting.third_party_entry({"x": "y"})
    await doubting.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    assert len(await letters(doubting)) == 1


async def test_concurrent_consumers_write_one_dead_letter(gallery: Gallery) -> None:
    entry_id = await gallery.third_party_entry({"x": "y"})
    await asyncio.gather(
        *(
            gallery.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
            for _ in range(20)
        )
    )
    assert len(await letters(gallery)) == 1


async def test_an_entry_that_is_not_pending_is_not_dead_lettered(gallery: Gallery) -> None:
    await gallery.third_party_entry({"x": "y"})
    before = await gallery.snapshot()
    await gallery.store.dead_letter_result("1-1", {"x": "y"}, "odd", 1, GROUP)
    await gallery.store.dead_letter_result("1-1", {"x": "y"}, "odd", 1, "no-such-group")
    assert await gallery.snapshot() == before


async def test_dead_letters_are_trimmed(real_gallery: Gallery) -> None:
    gallery = real_gallery
    pipe = gallery.client.pipeline(transaction=False)
    for _ in range(3 * DEAD_RESULTS_KEPT):
        pipe.xadd(gallery.keys.dead_results, {"x": "y" * 50})
    await pipe.execute()
    entry_id = await gallery.third_party_entry({"x": "y"})
    await gallery.store.dead_letter_result(entry_id, {"x": "y"}, "odd", 1, GROUP)
    kept: Any = await gallery.client.xlen(gallery.keys.dead_results)
    assert DEAD_RESULTS_KEPT <= kept < 2 * DEAD_RESULTS_KEPT
