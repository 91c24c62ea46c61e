"""The upload guard: one upload at a time, and a stalled one does not block for ever."""

from __future__ import annotations

import asyncio

from tests.common.features.images.kit import (
    ADMISSION,
    ALREADY,
    CONFLICT,
    HOLD_MS,
    LOST,
    MISSING,
    OK,
    STATUS_TTL_S,
    Gallery,
    fresh_upload,
    uploaded,
)


async def test_the_first_upload_gets_the_guard(gallery: Gallery) -> None:
    image_id = await gallery.create()
    await gallery.shorten(image_id)
    upload_id = await gallery.claim(image_id)
    assert await gallery.guard(image_id) == b"claimed"
    record = await gallery.record(image_id)
    assert (record["status"], record["upload_id"]) == ("queued", upload_id)
    seconds, micros = await gallery.client.time()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    assert now_ms < int(record["upload_deadline_ms"]) <= now_ms + HOLD_MS
    assert await gallery.stage(image_id) == ("queued", "0")
    assert await gallery.ttls(image_id) == (STATUS_TTL_S,) * 3


async def test_the_guard_is_a_single_set_nx(
    real_gallery: Gallery,
) -> None:
    image_id = await real_gallery.create()
    async with real_gallery.client.monitor() as monitor:
        await real_gallery.claim(image_id)
        seen = monitor.listen()
        async with asyncio.timeout(5):
            while not (command := (await anext(seen))["command"]).startswith("SET "):
                pass
    assert command == f"SET {real_gallery.keys.upload(image_id)} claimed NX EX 3600"


async def test_the_second_upload_gets_no_guard_and_writes_nothing(gallery: Gallery) -> None:
    image_id = await gallery.create()
    await gallery.claim(image_id)
    before = await gallery.snapshot()
    refused = await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)
    assert (refused.answer, refused.facts) == (CONFLICT, {"status": "queued"})
    assert await gallery.snapshot() == before


async def test_of_twenty_concurrent_claims_one_succeeds(gallery: Gallery) -> None:
    image_id = await gallery.create()
    stores = [gallery, *(Gallery(gallery.backend, gallery.jobs) for _ in range(3))]
    uploads = [fresh_upload() for _ in range(20)]
    outcomes = await asyncio.gather(
        *(
            stores[at % 4].store.claim(image_id, upload_id, HOLD_MS)
            for at, upload_id in enumerate(uploads)
        )
    )
    answers = [outcome.answer for outcome in outcomes]
    assert (answers.count(OK), answers.count(CONFLICT)) == (1, 19)
    assert (await gallery.record(image_id))["upload_id"] == uploads[answers.index(OK)]
    for other in stores[1:]:
        await other.close()


async def test_a_missing_image_has_no_guard(gallery: Gallery) -> None:
    assert (await gallery.store.claim("nobody", fresh_upload(), HOLD_MS)).answer is MISSING
    assert await gallery.snapshot() == {}


async def test_an_uploaded_image_cannot_be_uploaded_again(gallery: Gallery) -> None:
    """Also after the guard has expired, because the record lives longer."""
    for ending, status in (("none", "processing"), ("done", "processed"), ("failed", "failed")):
        held = await gallery.processing()
        if ending != "none":
            await (gallery.succeed(held) if ending == "done" else gallery.fail(held))
        for _ in range(2):
            before = await gallery.snapshot()
            refused = await gallery.store.claim(held.image_id, fresh_upload(), HOLD_MS)
            assert (refused.answer, refused.facts) == (CONFLICT, {"status": status})
            assert await gallery.snapshot() == before
            await gallery.client.delete(gallery.keys.upload(held.image_id))


async def test_a_stalled_upload_is_replaced_by_the_next(gallery: Gallery) -> None:
    image_id = await gallery.create()
    silent = await gallery.claim(image_id)
    await gallery.over(image_id)
    upload_id = await gallery.claim(image_id)
    assert (await gallery.record(image_id))["upload_id"] == upload_id
    before = await gallery.snapshot()
    assert (await gallery.store.extend_claim(image_id, silent, HOLD_MS)).answer is LOST
    assert (await gallery.store.release(image_id, silent)).answer is LOST
    late = await gallery.store.submit(uploaded(image_id, silent), ADMISSION)
    assert late.answer is LOST
    assert await gallery.snapshot() == before


async def test_of_twenty_claims_one_replaces_a_stalled_upload(gallery: Gallery) -> None:
    image_id = await gallery.create()
    await gallery.claim(image_id)
    await gallery.over(image_id)
    outcomes = await asyncio.gather(
        *(gallery.store.claim(image_id, fresh_upload(), HOLD_MS) for _ in range(20))
    )
    assert [outcome.answer for outcome in outcomes].count(OK) == 1


async def test_a_third_party_guard_is_respected_until_it_expires(gallery: Gallery) -> None:
    """A third-party gateway does not write the record."""
    image_id = await gallery.create()
    guard = gallery.keys.upload(image_id)
    await gallery.client.set(guard, "claimed", ex=100)
    assert (await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is CONFLICT
    assert (await gallery.store.reopen(image_id)).answer is CONFLICT
    assert await gallery.client.ttl(guard) <= 100
    await gallery.client.delete(guard)
    await gallery.claim(image_id)


async def test_a_claim_is_repeated_after_a_lost_reply(doubting: Gallery) -> None:
    image_id = await doubting.create()
    await doubting.claim(image_id)


async def test_the_guard_of_an_upload_in_progress_is_extended(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id, hold_ms=1)
    await gallery.shorten(image_id)
    assert (await gallery.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is OK
    assert (await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is CONFLICT
    assert await gallery.ttls(image_id) == (STATUS_TTL_S,) * 3


async def test_extending_restores_a_lost_guard(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    await gallery.client.delete(gallery.keys.upload(image_id))
    assert (await gallery.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is OK
    assert await gallery.guard(image_id) == b"claimed"
    assert (await gallery.ttls(image_id))[2] == STATUS_TTL_S


async def test_only_the_holder_can_extend_the_guard(gallery: Gallery) -> None:
    image_id = await gallery.create()
    assert (await gallery.store.extend_claim(image_id, fresh_upload(), HOLD_MS)).answer is LOST
    await gallery.claim(image_id)
    held = await gallery.processing()
    before = await gallery.snapshot()
    assert (await gallery.store.extend_claim(image_id, fresh_upload(), HOLD_MS)).answer is LOST
    assert (await gallery.store.extend_claim("nobody", fresh_upload(), HOLD_MS)).answer is LOST
    assert (await gallery.store.extend_claim(held.image_id, held.upload_id, HOLD_MS)).answer is LOST
    assert await gallery.snapshot() == before


async def test_a_failed_upload_releases_the_guard(doubting: Gallery) -> None:
    image_id = await doubting.create()
    upload_id = await doubting.claim(image_id)
    await doubting.shorten(image_id)
    assert (await doubting.store.release(image_id, upload_id)).answer is OK
    assert await doubting.guard(image_id) is None
    record = await doubting.record(image_id)
    assert record["status"] == "queued"
    assert not {"upload_id", "upload_deadline_ms"} & set(record)
    assert await doubting.stage(image_id) == ("queued", "0")
    assert await doubting.ttls(image_id) == (STATUS_TTL_S, STATUS_TTL_S, -2)
    await doubting.claim(image_id)


async def test_only_the_holder_can_release_the_guard(gallery: Gallery) -> None:
    image_id = await gallery.create()
    await gallery.claim(image_id)
    ended = await gallery.failed()
    held = await gallery.processing()
    before = await gallery.snapshot()
    assert (await gallery.store.release(image_id, fresh_upload())).answer is LOST
    assert (await gallery.store.release("nobody", fresh_upload())).answer is LOST
    for one in (held, ended):
        assert (await gallery.store.release(one.image_id, one.upload_id)).answer is LOST
    assert await gallery.snapshot() == before


async def test_a_claim_restores_an_expired_status(gallery: Gallery) -> None:
    held = await gallery.failed()
    assert (await gallery.store.reopen(held.image_id)).answer is not ALREADY
    await gallery.client.delete(gallery.keys.status(held.image_id))
    await gallery.claim(held.image_id)
    assert await gallery.stage(held.image_id) == ("queued", "0")
