"""ADVANCE: stages only go forward, only for the current attempt, and are published."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from common.contracts.images import Stage
from tests.common.features.images.kit import (
    ALREADY,
    LOST,
    MISSING,
    OK,
    RECORD_TTL_S,
    SHOWN,
    STAGES,
    STATUS_TTL_S,
    Gallery,
)
from tests.conftest import eventually


async def test_each_stage_has_its_progress(gallery: Gallery) -> None:
    held = await gallery.processing()
    for stage, shown in zip(STAGES, SHOWN, strict=True):
        await gallery.shorten(held.image_id)
        assert (await gallery.store.advance(held, stage)).answer is OK
        assert await gallery.stage(held.image_id) == (stage.value, shown)
        assert set(await gallery.status(held.image_id)) == {"stage", "progress", "updated_at"}
        assert await gallery.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert (await gallery.record(held.image_id))["status"] == "processing"


@pytest.mark.parametrize(("there", "wanted"), list(itertools.product(range(5), range(5))))
async def test_it_never_goes_back(real_gallery: Gallery, there: int, wanted: int) -> None:
    gallery = real_gallery
    held = await gallery.processing()
    await gallery.store.advance(held, STAGES[there])
    before = await gallery.snapshot()
    outcome = await gallery.store.advance(held, STAGES[wanted])
    assert outcome.answer is (OK if wanted > there else ALREADY)
    assert await gallery.stage(held.image_id) == (
        STAGES[max(there, wanted)].value,
        SHOWN[max(there, wanted)],
    )
    if wanted <= there:
        assert await gallery.snapshot() == before


async def test_a_second_attempt_writes_nothing_until_it_is_further(gallery: Gallery) -> None:
    first = await gallery.processing()
    await gallery.store.advance(first, Stage.ENCODING)
    job_id = (await gallery.record(first.image_id))["job_id"]
    second = await gallery.hold(first.image_id, first.upload_id, job_id, attempt=2)
    seen = []
    for stage in STAGES:
        seen.append((await gallery.store.advance(second, stage)).answer)
        assert int((await gallery.status(first.image_id))["progress"]) >= 75
    assert seen == [ALREADY, ALREADY, ALREADY, ALREADY, OK]


async def test_a_superseded_attempt_cannot_advance(gallery: Gallery) -> None:
    first = await gallery.processing()
    job_id = (await gallery.record(first.image_id))["job_id"]
    await gallery.hold(first.image_id, first.upload_id, job_id, attempt=2)
    before = await gallery.snapshot()
    assert (await gallery.store.advance(first, Stage.DECODING)).answer is LOST
    assert await gallery.snapshot() == before


async def test_a_superseded_upload_cannot_advance(gallery: Gallery) -> None:
    held = await gallery.processing()
    claimed = await gallery.create()
    upload_id = await gallery.claim(claimed)
    before = await gallery.snapshot()
    old = held._replace(upload_id="0" * 16, fence=None)
    assert (await gallery.store.advance(old, Stage.DECODING)).answer is LOST
    not_yet = held._replace(image_id=claimed, upload_id=upload_id, fence=None)
    assert (await gallery.store.advance(not_yet, Stage.DECODING)).answer is LOST
    nobody = held._replace(image_id=claimed, upload_id="", fence=None)
    assert (await gallery.store.advance(nobody, Stage.DECODING)).answer is LOST
    gone = held._replace(image_id="nobody")
    assert (await gallery.store.advance(gone, Stage.DECODING)).answer is MISSING
    assert await gallery.snapshot() == before


@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.DONE, Stage.FAILED])
async def test_final_stages_need_a_result(gallery: Gallery, stage: Stage) -> None:
    held = await gallery.processing()
    before = await gallery.snapshot()
    with pytest.raises(ValueError, match=stage.value):
        await gallery.store.advance(held, stage)
    assert await gallery.snapshot() == before


async def test_an_expired_status_is_restored_completely(gallery: Gallery) -> None:
    held = await gallery.processing()
    await gallery.client.delete(gallery.keys.status(held.image_id))
    assert (await gallery.store.advance(held, Stage.DECODING)).answer is OK
    assert set(await gallery.status(held.image_id)) == {"stage", "progress", "updated_at"}


async def test_a_hint_names_the_changed_image(real_gallery: Gallery) -> None:
    gallery = real_gallery
    heard: list[bytes] = []
    pubsub = gallery.client.pubsub()
    await pubsub.subscribe(gallery.jobs.hints)

    async def listen() -> None:
        async for message in pubsub.listen():
            if message["type"] == "message":
                heard.extend(message["data"].split())

    listening = asyncio.create_task(listen())
    held = await gallery.processing()
    name = gallery.keys.status(held.image_id).encode()
    await eventually(lambda: set(heard) == {name})
    for call in (
        lambda: gallery.store.advance(held, Stage.VALIDATING),
        lambda: gallery.fail(held),
        lambda: gallery.store.reopen(held.image_id),
        lambda: gallery.store.delete(held.image_id),
    ):
        heard.clear()
        await call()
        await eventually(lambda: heard == [name])
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await pubsub.aclose()
