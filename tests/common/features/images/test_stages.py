"""ADVANCE: stages only go forward, only for the current attempt, and are published."""

from __future__ import annotations

import itertools

import pytest

from common.contracts.images import Stage
from tests.support.store.images import (
    ALREADY,
    OK,
    RECORD_TTL_S,
    SHOWN,
    STAGES,
    STATUS_TTL_S,
    ImageHarness,
)
from tests.support.waiting import eventually


async def test_each_stage_has_its_progress(images: ImageHarness) -> None:
    held = await images.processing()
    for stage, shown in zip(STAGES, SHOWN, strict=True):
        await images.shorten(held.image_id)
        assert (await images.store.advance(held, stage)).answer is OK
        assert await images.stage(held.image_id) == (stage.value, shown)
        assert set(await images.status(held.image_id)) == {"stage", "progress", "updated_at"}
        assert await images.ttls(held.image_id) == (RECORD_TTL_S, STATUS_TTL_S, STATUS_TTL_S)
    assert (await images.record(held.image_id))["status"] == "processing"
    async with images.unchanged():  # other stages need a result
        for stage in (Stage.QUEUED, Stage.DONE, Stage.FAILED):
            with pytest.raises(ValueError, match=stage.value):
                await images.store.advance(held, stage)
    # An expired status is restored completely.
    held = await images.processing()
    await images.client.delete(images.keys.status(held.image_id))
    assert (await images.store.advance(held, Stage.DECODING)).answer is OK
    assert set(await images.status(held.image_id)) == {"stage", "progress", "updated_at"}


@pytest.mark.real_redis
async def test_it_never_goes_back(images: ImageHarness) -> None:
    for there, wanted in itertools.product(range(5), range(5)):
        held = await images.processing()
        await images.store.advance(held, STAGES[there])
        before = await images.record(held.image_id), await images.status(held.image_id)
        outcome = await images.store.advance(held, STAGES[wanted])
        assert outcome.answer is (OK if wanted > there else ALREADY), (there, wanted)
        last = max(there, wanted)
        assert await images.stage(held.image_id) == (STAGES[last].value, SHOWN[last])
        if wanted <= there:
            after = await images.record(held.image_id), await images.status(held.image_id)
            assert after == before, (there, wanted)


async def test_a_second_attempt_writes_nothing_until_it_is_further(images: ImageHarness) -> None:
    first = await images.processing()
    await images.store.advance(first, Stage.ENCODING)
    job_id = (await images.record(first.image_id))["job_id"]
    second = await images.hold(first.image_id, first.upload_id, job_id, attempt=2)
    seen = []
    for stage in STAGES:
        seen.append((await images.store.advance(second, stage)).answer)
        assert int((await images.status(first.image_id))["progress"]) >= 75
    assert seen == [ALREADY, ALREADY, ALREADY, ALREADY, OK]


@pytest.mark.real_redis
async def test_a_hint_names_the_changed_image(images: ImageHarness) -> None:
    heard: list[bytes] = []
    wire = images.backend.wire(on_message=lambda message: heard.extend(message.split()))
    await wire.execute_command("SUBSCRIBE", images.jobs.hints)
    held = await images.processing()
    name = images.keys.status(held.image_id).encode()
    await eventually(lambda: set(heard) == {name})
    for call in (
        lambda: images.store.advance(held, Stage.VALIDATING),
        lambda: images.fail(held),
        lambda: images.store.reopen(held.image_id),
        lambda: images.store.delete(held.image_id),
    ):
        heard.clear()
        await call()
        await eventually(lambda: heard == [name])
