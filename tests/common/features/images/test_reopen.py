"""REOPEN and DELETE, whatever else happens to the image."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.images import Stage
from tests.common.features.images.kit import (
    ADMISSION,
    CONFLICT,
    GROUP,
    HOLD_MS,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    STATUS_TTL_S,
    Gallery,
    failure_fields,
    fresh_upload,
    uploaded,
)

OF_AN_END = {"error_code", "error_message", "failed_at", "outcome", "details", "result_entry_id"}
OF_AN_UPLOAD = {"upload_id", "upload_deadline_ms", "job_id", "source_bytes", "source_sha256"}


async def test_a_failed_image_may_be_uploaded_again(gallery: Gallery) -> None:
    held = await gallery.failed(filename="a.jpg")
    job_id = (await gallery.record(held.image_id))["job_id"]
    await gallery.shorten(held.image_id)
    outcome = await gallery.store.reopen(held.image_id)
    assert outcome == (OK, {"upload_id": held.upload_id, "job_id": job_id})
    record = await gallery.record(held.image_id)
    assert (record["status"], record["filename"]) == ("queued", "a.jpg")
    assert not (OF_AN_END | OF_AN_UPLOAD | {"uploaded_type"}) & set(record)
    [(entry_id, _)] = await gallery.entries()
    assert record["results_after"] == entry_id
    shown = await gallery.status(held.image_id)
    assert set(shown) == {"stage", "progress", "updated_at"}
    assert (shown["stage"], shown["progress"]) == ("queued", "0")
    assert await gallery.guard(held.image_id) is None
    # There was an upload, so it is kept as long as before.
    assert await gallery.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, -2)
    second = await gallery.submit(held.image_id, await gallery.claim(held.image_id))
    assert await gallery.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    await gallery.succeed(second)
    assert await gallery.stage(held.image_id) == ("done", "100")
    assert len(await gallery.entries()) == 2


async def test_a_second_upload_starts_at_the_first_stage(gallery: Gallery) -> None:
    first = await gallery.processing()
    await gallery.store.advance(first, Stage.UPLOADING)
    await gallery.fail(first)
    await gallery.store.reopen(first.image_id)
    second = await gallery.submit(first.image_id, await gallery.claim(first.image_id))
    assert (await gallery.store.advance(second, Stage.VALIDATING)).answer is OK
    assert await gallery.stage(first.image_id) == ("validating", "10")


async def test_a_worker_of_the_earlier_upload_writes_nothing(gallery: Gallery) -> None:
    first = await gallery.failed()
    await gallery.store.reopen(first.image_id)
    states = [lambda: gallery.claim(first.image_id)]
    for go_on in (None, *states):
        if go_on:
            await go_on()
        before = await gallery.snapshot()
        for held in (first, first._replace(fence=None)):
            assert (await gallery.store.advance(held, Stage.UPLOADING)).answer is LOST
            assert (await gallery.succeed(held)).answer is LOST
            assert (await gallery.fail(held)).answer is LOST
        late = uploaded(first.image_id, first.upload_id)
        assert (await gallery.store.submit(late, ADMISSION)).answer is LOST
        assert (await gallery.store.extend_claim(first.image_id, first.upload_id, 1)).answer is LOST
        assert await gallery.snapshot() == before


async def test_a_stalled_upload_can_be_abandoned(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    before = await gallery.snapshot()
    refused = await gallery.store.reopen(image_id)
    assert (refused.answer, refused.facts) == (CONFLICT, {"status": "queued"})
    assert await gallery.snapshot() == before
    await gallery.over(image_id)
    assert await gallery.store.reopen(image_id) == (OK, {"upload_id": upload_id})
    assert await gallery.guard(image_id) is None
    # There was never an upload, so it is not kept longer.
    assert await gallery.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    await gallery.claim(image_id)
    assert (await gallery.ttls(image_id))[0] == STATUS_TTL_S


async def test_images_in_other_states_are_not_reopened(gallery: Gallery) -> None:
    fresh = await gallery.create()
    running = await gallery.processing()
    done = await gallery.processing()
    await gallery.succeed(done)
    before = await gallery.snapshot()
    for image_id, status in (
        (fresh, "queued"),
        (running.image_id, "processing"),
        (done.image_id, "processed"),
    ):
        refused = await gallery.store.reopen(image_id)
        assert (refused.answer, refused.facts) == (CONFLICT, {"status": status})
    assert (await gallery.store.reopen("nobody")).answer is MISSING
    assert await gallery.snapshot() == before


@pytest.mark.parametrize("how", ["failed", "stale"])
async def test_a_lost_reply_reopens_once(doubting: Gallery, how: str) -> None:
    if how == "failed":
        held = await doubting.processing()
        await doubting.fail(held)
        image_id = held.image_id
    else:
        image_id = await doubting.create()
        await doubting.claim(image_id)
        await doubting.over(image_id)
    assert (await doubting.store.reopen(image_id)).answer is OK
    await doubting.claim(image_id)
    assert (await doubting.store.reopen(image_id)).answer is CONFLICT


async def test_a_concurrent_third_party_upload_is_not_reopened(gallery: Gallery) -> None:
    held = await gallery.failed()
    await gallery.store.reopen(held.image_id)
    await gallery.client.set(gallery.keys.upload(held.image_id), "claimed", ex=3600)
    before = await gallery.snapshot()
    assert (await gallery.store.reopen(held.image_id)).answer is CONFLICT
    assert await gallery.snapshot() == before


async def test_a_second_failure_can_be_reopened_too(gallery: Gallery) -> None:
    held = await gallery.failed()
    for number in range(2, 5):
        assert (await gallery.store.reopen(held.image_id)).answer is OK
        held = await gallery.submit(held.image_id, await gallery.claim(held.image_id))
        await gallery.fail(held)
        entries = await gallery.entries()
        assert len(entries) == number
        assert (await gallery.record(held.image_id))["result_entry_id"] == entries[-1][0]


async def test_the_position_in_the_results_survives_their_deletion(gallery: Gallery) -> None:
    held = await gallery.failed()
    [(entry_id, _)] = await gallery.entries()
    await gallery.client.delete(gallery.keys.results)
    await gallery.store.reopen(held.image_id)
    assert (await gallery.record(held.image_id))["results_after"] == entry_id


# -- deleting ----------------------------------------------------------------------------------


async def test_a_deletion_returns_what_is_left_to_clean_up(gallery: Gallery) -> None:
    held = await gallery.processing(tenant="acme")
    job_id = (await gallery.record(held.image_id))["job_id"]
    other = await gallery.create(tenant="acme")
    outcome = await gallery.store.delete(held.image_id)
    assert outcome == (
        OK,
        {
            "status": "processing",
            "job_id": job_id,
            "upload_id": held.upload_id,
            "storage_key": f"images/{held.image_id}.webp",
        },
    )
    assert await gallery.ttls(held.image_id) == (-2, -2, -2)
    assert await gallery.under_way() == []
    for index in (gallery.keys.index(), gallery.keys.index("acme")):
        assert await gallery.client.zrange(index, 0, -1) == [other.encode()]
    assert await gallery.without_ttl() == []
    assert 0 < await gallery.client.ttl(gallery.keys.deleted(held.image_id)) <= 60


async def test_a_stored_image_is_deleted_by_its_own_key(gallery: Gallery) -> None:
    held = await gallery.processing()
    fields = {
        **failure_fields(held.image_id),
    }
    entry_id = await gallery.third_party_entry(fields)
    await gallery.store.persist(entry_id, fields, GROUP)
    outcome = await gallery.store.delete(held.image_id)
    assert outcome.facts["storage_key"] == f"images/{held.image_id}.webp"
    image_id = await gallery.create()
    assert await gallery.store.delete(image_id) == (
        OK,
        {"status": "queued", "storage_key": f"images/{image_id}.webp"},
    )
    stored = await gallery.processing()
    await gallery.succeed(stored)
    await gallery.client.hset(gallery.keys.record(stored.image_id), "storage_key", "elsewhere/x")
    outcome = await gallery.store.delete(stored.image_id)
    assert outcome.facts["storage_key"] == "elsewhere/x"


async def test_a_deletion_with_a_lost_reply_returns_the_same(doubting: Gallery) -> None:
    held = await doubting.processing()
    outcome = await doubting.store.delete(held.image_id)
    assert outcome.answer is OK
    assert outcome.facts["upload_id"] == held.upload_id


async def test_a_second_deletion_finds_nothing(gallery: Gallery) -> None:
    image_id = await gallery.create()
    assert (await gallery.store.delete(image_id)).answer is OK
    before = await gallery.snapshot()
    assert (await gallery.store.delete(image_id)).answer is MISSING
    assert (await gallery.store.delete("nobody")).answer is MISSING
    assert await gallery.snapshot() == before


async def test_of_concurrent_deletions_one_gets_the_facts(gallery: Gallery) -> None:
    image_id = await gallery.create()
    outcomes = await asyncio.gather(*(gallery.store.delete(image_id) for _ in range(20)))
    assert [outcome.answer for outcome in outcomes].count(OK) == 1


async def test_uploading_a_deleted_image_fails(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    await gallery.store.delete(image_id)
    before = await gallery.snapshot()
    assert (await gallery.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is LOST
    assert (await gallery.store.release(image_id, upload_id)).answer is LOST
    late = await gallery.store.submit(uploaded(image_id, upload_id), ADMISSION)
    assert late.answer is MISSING
    assert (await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is MISSING
    assert await gallery.snapshot() == before


# -- in-flight images --------------------------------------------------------------------------


async def test_in_flight_images_are_listed_with_their_jobs(gallery: Gallery) -> None:
    held = [await gallery.processing() for _ in range(3)]
    found = await gallery.store.inflight(10)
    assert [(each.image_id, each.upload_id) for each in found] == sorted(
        [(each.image_id, each.upload_id) for each in held],
        key=lambda pair: [each.image_id for each in found].index(pair[0]),
    )
    for each in found:
        assert each.job_id == (await gallery.record(each.image_id))["job_id"]
    await gallery.succeed(held[0])
    assert len(await gallery.store.inflight(10)) == 2


async def test_the_scan_reaches_every_image(gallery: Gallery) -> None:
    held = {(await gallery.processing()).image_id for _ in range(7)}
    seen: list[str] = []
    for _ in range(4):
        seen += [each.image_id for each in await gallery.store.inflight(2)]
    assert (len(seen), set(seen)) == (7, held)
    assert len(await gallery.store.inflight(100)) == 7


async def test_expired_images_are_not_in_flight(gallery: Gallery) -> None:
    gone, there = await gallery.processing(), await gallery.processing()
    await gallery.client.delete(gallery.keys.record(gone.image_id))
    assert [each.image_id for each in await gallery.store.inflight(10)] == [there.image_id]
    assert await gallery.under_way() == [there.image_id]
