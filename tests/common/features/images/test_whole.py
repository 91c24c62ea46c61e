"""An image from creation to end, with every reply lost once, and what remains of it."""

from __future__ import annotations

import re

from tests.common.features.images.kit import (
    FAILURE_FIELDS,
    RESULT_FIELDS,
    SHOWN,
    STAGES,
    Gallery,
    new_image,
)

RFC_3339 = re.compile(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")


async def through(gallery: Gallery, ending: str) -> str:
    held = await gallery.processing(tenant="acme", tail="7")
    image_id = held.image_id
    assert await gallery.stage(image_id) == ("queued", "0")
    for stage, shown in zip(STAGES, SHOWN, strict=True):
        await gallery.store.advance(held, stage)
        assert await gallery.stage(image_id) == (stage.value, shown)
    await (gallery.succeed(held) if ending == "done" else gallery.fail(held))
    return image_id


async def test_a_success_is_in_status_record_and_stream(doubting: Gallery) -> None:
    image_id = await through(doubting, "done")
    shown = await doubting.status(image_id)
    assert list(shown) == ["stage", "progress", "updated_at"]
    assert (shown["stage"], shown["progress"]) == ("done", "100")
    assert RFC_3339.match(shown["updated_at"])
    [(entry_id, fields)] = await doubting.entries()
    assert list(fields) == RESULT_FIELDS
    assert RFC_3339.match(fields["processed_at"])
    record = await doubting.record(image_id)
    assert record["status"] == "processed"
    assert {name: record[name] for name in fields} == fields
    assert record["result_entry_id"] == entry_id
    assert await doubting.under_way() == []
    assert await doubting.guard(image_id) == b"claimed"
    assert await doubting.without_ttl() == []


async def test_a_failure_is_in_status_record_and_stream(doubting: Gallery) -> None:
    image_id = await through(doubting, "failed")
    shown = await doubting.status(image_id)
    assert set(shown) == {"stage", "progress", "updated_at", "error"}
    assert (shown["stage"], shown["progress"], shown["error"]) == ("failed", "-1", "file too large")
    [(entry_id, fields)] = await doubting.entries()
    assert list(fields) == FAILURE_FIELDS
    record = await doubting.record(image_id)
    assert (record["status"], record["result_entry_id"]) == ("failed", entry_id)
    assert {name: record[name] for name in fields} == fields
    assert await doubting.under_way() == []
    assert await doubting.without_ttl() == []


async def test_a_deleted_image_leaves_no_keys(doubting: Gallery) -> None:
    made = new_image(tenant="acme")
    await doubting.store.create(made)
    upload_id = await doubting.claim(made.image_id)
    await doubting.submit(made.image_id, upload_id)
    await doubting.store.delete(made.image_id)
    left = {key for key in await doubting.client.keys("*") if b"job" not in key}
    assert left == {doubting.keys.deleted(made.image_id).encode()}
