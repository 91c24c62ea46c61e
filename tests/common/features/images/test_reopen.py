"""REOPEN and DELETE, whatever else happens to the image."""

from __future__ import annotations

import asyncio

from common.contracts.images import Stage
from tests.support.store.images import (
    CONFLICT,
    GROUP,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    ImageHarness,
    failure_fields,
)

OF_AN_END = {"error_code", "error_message", "failed_at", "outcome", "details", "result_entry_id"}
OF_AN_UPLOAD = {"upload_id", "upload_deadline_ms", "job_id", "source_bytes", "source_sha256"}


async def test_a_failed_image_may_be_uploaded_again(images: ImageHarness) -> None:
    held = await images.failed(filename="a.jpg")
    job_id = (await images.record(held.image_id))["job_id"]
    await images.shorten(held.image_id)
    outcome = await images.store.reopen(held.image_id)
    assert outcome == (OK, {"upload_id": held.upload_id, "job_id": job_id})
    record = await images.record(held.image_id)
    assert (record["status"], record["filename"]) == ("queued", "a.jpg")
    assert not (OF_AN_END | OF_AN_UPLOAD | {"uploaded_type"}) & set(record)
    [(entry_id, _)] = await images.entries()
    assert record["results_after"] == entry_id
    shown = await images.status(held.image_id)
    assert set(shown) == {"stage", "progress", "updated_at"}
    assert (shown["stage"], shown["progress"]) == ("queued", "0")
    assert await images.guard(held.image_id) is None
    # There was an upload, so it is kept as long as before.
    assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, -2)
    second = await images.submit(held.image_id, await images.claim(held.image_id))
    assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    await images.succeed(second)
    assert await images.stage(held.image_id) == ("done", "100")
    assert len(await images.entries()) == 2


async def test_a_second_upload_starts_at_the_first_stage(images: ImageHarness) -> None:
    first = await images.processing()
    await images.store.advance(first, Stage.UPLOADING)
    await images.fail(first)
    for number in range(2, 5):
        assert (await images.store.reopen(first.image_id)).answer is OK
        held = await images.submit(first.image_id, await images.claim(first.image_id))
        assert (await images.store.advance(held, Stage.VALIDATING)).answer is OK
        assert await images.stage(first.image_id) == ("validating", "10")
        await images.fail(held)
        entries = await images.entries()
        assert len(entries) == number
        assert (await images.record(held.image_id))["result_entry_id"] == entries[-1][0]


async def test_a_stalled_upload_can_be_abandoned(images: ImageHarness) -> None:
    image_id = await images.create()
    upload_id = await images.claim(image_id)
    async with images.unchanged():
        refused = await images.store.reopen(image_id)
        assert (refused.answer, refused.facts) == (CONFLICT, {"status": "queued"})
    await images.over(image_id)
    assert await images.store.reopen(image_id) == (OK, {"upload_id": upload_id})
    async with images.unchanged():  # repeated after a lost reply
        assert (await images.store.reopen(image_id)).answer is OK
    assert await images.guard(image_id) is None
    # There was never an upload, so it is not kept longer.
    assert await images.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    await images.claim(image_id)
    assert (await images.ttls(image_id))[0] == STATUS_TTL_S


async def test_the_position_in_the_results_survives_their_deletion(images: ImageHarness) -> None:
    held = await images.failed()
    [(entry_id, _)] = await images.entries()
    await images.client.delete(images.keys.results)
    await images.store.reopen(held.image_id)
    assert (await images.record(held.image_id))["results_after"] == entry_id


async def test_a_deletion_returns_what_is_left_to_clean_up(images: ImageHarness) -> None:
    held = await images.processing(tenant="acme")
    job_id = (await images.record(held.image_id))["job_id"]
    other = await images.create(tenant="acme")
    outcome = await images.store.delete(held.image_id)
    assert outcome == (
        OK,
        {
            "status": "processing",
            "job_id": job_id,
            "upload_id": held.upload_id,
            "storage_key": f"images/{held.image_id}.webp",
        },
    )
    assert await images.ttls(held.image_id) == (-2, -2, -2)
    assert await images.under_way() == []
    for index in (images.keys.index(), images.keys.index("acme")):
        assert await images.client.zrange(index, 0, -1) == [other.encode()]
    assert await images.without_ttl() == []
    assert 0 < await images.client.ttl(images.keys.deleted(held.image_id)) <= 60
    # Of concurrent deletions one gets the facts.
    image_id = await images.create()
    outcomes = await asyncio.gather(*(images.store.delete(image_id) for _ in range(20)))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1


async def test_a_stored_image_is_deleted_by_its_own_key(images: ImageHarness) -> None:
    held = await images.processing()
    fields = failure_fields(held.image_id)
    entry_id = await images.third_party_entry(fields)
    await images.store.persist(entry_id, fields, GROUP)
    outcome = await images.store.delete(held.image_id)
    assert outcome.facts["storage_key"] == f"images/{held.image_id}.webp"
    stored = await images.processing()
    await images.succeed(stored)
    await images.client.hset(images.keys.record(stored.image_id), "storage_key", "elsewhere/x")
    outcome = await images.store.delete(stored.image_id)
    assert outcome.facts["storage_key"] == "elsewhere/x"
    image_id = await images.create()
    facts = {"status": "queued", "storage_key": f"images/{image_id}.webp"}
    assert await images.store.delete(image_id) == (OK, facts)
    async with images.unchanged():
        assert (await images.store.delete(image_id)).answer is MISSING
        assert (await images.store.delete("nobody")).answer is MISSING


async def test_in_flight_images_are_listed_with_their_jobs(images: ImageHarness) -> None:
    held = [await images.processing() for _ in range(3)]
    found = await images.store.inflight(10)
    assert {(each.image_id, each.upload_id) for each in found} == {each[:2] for each in held}
    for each in found:
        assert each.job_id == (await images.record(each.image_id))["job_id"]
    done, gone, there = held
    await images.succeed(done)
    await images.client.delete(images.keys.record(gone.image_id))
    assert [each.image_id for each in await images.store.inflight(10)] == [there.image_id]
    assert await images.under_way() == [there.image_id]
    # A scan in pages reaches every image.
    await images.store.delete(there.image_id)
    held = {(await images.processing()).image_id for _ in range(7)}
    seen: list[str] = []
    for _ in range(4):
        seen += [each.image_id for each in await images.store.inflight(2)]
    assert (len(seen), set(seen)) == (7, held)
    assert len(await images.store.inflight(100)) == 7
