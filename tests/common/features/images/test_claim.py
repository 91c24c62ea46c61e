"""The guard: one upload at a time, and none that fell silent for ever."""

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


async def test_the_guard_is_one_command_that_only_the_first_upload_passes(
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


async def test_the_second_gets_none_and_writes_nothing(gallery: Gallery) -> None:
    image_id = await gallery.create()
    await gallery.claim(image_id)
    before = await gallery.snapshot()
    refused = await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)
    assert (refused.answer, refused.facts) == (CONFLICT, {"status": "queued"})
    assert await gallery.snapshot() == before


async def test_of_twenty_at_once_exactly_one_gets_it(gallery: Gallery) -> None:
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


async def test_there_is_no_guard_for_what_is_not_there(gallery: Gallery) -> None:
    assert (await gallery.store.claim("nobody", fresh_upload(), HOLD_MS)).answer is MISSING
    assert await gallery.snapshot() == {}


async def test_whatever_was_uploaded_is_not_uploaded_again(gallery: Gallery) -> None:
    """Also once the guard has run out, which the record survives."""
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


async def test_an_upload_that_fell_silent_is_followed_by_the_next(gallery: Gallery) -> None:
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


async def test_of_twenty_at_once_one_follows_the_silent_one(gallery: Gallery) -> None:
    image_id = await gallery.create()
    await gallery.claim(image_id)
    await gallery.over(image_id)
    outcomes = await asyncio.gather(
        *(gallery.store.claim(image_id, fresh_upload(), HOLD_MS) for _ in range(20))
    )
    assert [outcome.answer for outcome in outcomes].count(OK) == 1


async def test_a_guard_of_somebody_else_is_respected_until_it_runs_out(gallery: Gallery) -> None:
    """A gateway that knows the seed only tells the record nothing."""
    image_id = await gallery.create()
    guard = gallery.keys.upload(image_id)
    await gallery.client.set(guard, "claimed", ex=100)
    assert (await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is CONFLICT
    assert (await gallery.store.reopen(image_id)).answer is CONFLICT
    assert await gallery.client.ttl(guard) <= 100
    await gallery.client.delete(guard)
    await gallery.claim(image_id)


async def test_a_claim_whose_reply_was_lost_is_made_again(doubting: Gallery) -> None:
    image_id = await doubting.create()
    await doubting.claim(image_id)


async def test_an_upload_that_goes_on_is_held(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id, hold_ms=1)
    await gallery.shorten(image_id)
    assert (await gallery.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is OK
    assert (await gallery.store.claim(image_id, fresh_upload(), HOLD_MS)).answer is CONFLICT
    assert await gallery.ttls(image_id) == (STATUS_TTL_S,) * 3


async def test_a_guard_that_was_lost_is_there_again_when_held(gallery: Gallery) -> None:
    image_id = await gallery.create()
    upload_id = await gallery.claim(image_id)
    await gallery.client.delete(gallery.keys.upload(image_id))
    assert (await gallery.store.extend_claim(image_id, upload_id, HOLD_MS)).answer is OK
    assert await gallery.guard(image_id) == b"claimed"
    assert (await gallery.ttls(image_id))[2] == STATUS_TTL_S


async def test_nothing_is_held_that_is_not_ones_own(gallery: Gallery) -> None:
    image_id = await gallery.create()
    assert (await gallery.store.extend_claim(image_id, fresh_upload(), HOLD_MS)).answer is LOST
    await gallery.claim(image_id)
    held = await gallery.processing()
    before = await gallery.snapshot()
    assert (await gallery.store.extend_claim(image_id, fresh_upload(), HOLD_MS)).answer is LOST
    assert (await gallery.store.extend_claim("nobody", fresh_upload(), HOLD_MS)).answer is LOST
    assert (await gallery.store.extend_claim(held.image_id, held.upload_id, HOLD_MS)).answer is LOST
    assert await gallery.snapshot() == before


async def test_an_upload_that_came_to_nothing_frees_the_guard(doubting: Gallery) -> None:
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


async def test_nothing_is_freed_that_is_not_ones_own(gallery: Gallery) -> None:
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


async def test_a_claim_shows_an_image_whose_status_had_run_out(gallery: Gallery) -> None:
    held = await gallery.failed()
    assert (await gallery.store.reopen(held.image_id)).answer is not ALREADY
    await gallery.client.delete(gallery.keys.status(held.image_id))
    await gallery.claim(held.image_id)
    assert await gallery.stage(held.image_id) == ("queued", "0")
