"""The reconciler ends images whose core job has ended without them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from redis.exceptions import ResponseError

from common.aio import cancel
from common.errors import StoreUnavailable
from tests.conftest import eventually
from tests.worker.features.images.kit import RESULT_FIELDS, ImageMaker, ImageRig, photo

SHA = "ab" * 32


async def stranded(rig: ImageRig, **job: str) -> tuple[str, str]:
    """An image whose job was never taken and has these fields; returns both ids."""
    image_id = await rig.upload(photo())
    job_id = (await rig.record(image_id)).job_id
    if job:
        await rig.client.hset(rig.keys.job(job_id), mapping=job)
    else:
        await rig.client.delete(rig.keys.job(job_id))
    return image_id, job_id


async def ended_with(rig: ImageRig, image_id: str, code: str) -> str:
    """Check that it failed with this code and left nothing; returns its message."""
    record = await rig.record(image_id)
    assert record.failure is not None, record
    assert record.failure.error_code == code
    [entry] = await rig.entries(image_id)
    assert entry["error_code"] == code
    await eventually(lambda: rig.spooled() == [])
    assert await rig.client.zcard(rig.images.keys.inflight) == 0
    return record.failure.error_message


async def test_a_job_that_is_gone(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    image_id, _ = await stranded(rig)
    await rig.service.run_once()
    assert "upload it again" in await ended_with(rig, image_id, "INTERNAL_ERROR")


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        ({"status": "canceled"}, "CANCELED", "canceled"),
        ({"status": "error", "error": '{"kind":"timeout","message":"ran longer than 3600 s"}'},
         "TIMEOUT", "ran longer than 3600 s"),
        ({"status": "error", "error": '{"kind":"attempts_exhausted","message":"begun 5 times"}'},
         "INTERNAL_ERROR", "begun 5 times"),
        ({"status": "error", "error": '{"kind":"image_store_failed","message":"no bucket"}'},
         "UPLOAD_FAILED", "no bucket"),
        ({"status": "error", "error": "no JSON"}, "INTERNAL_ERROR", "its core job failed"),
        ({"status": "done", "result": '{"echo":{}}'}, "INTERNAL_ERROR", "python -m worker"),
        ({"status": "done", "result": "nonsense"}, "INTERNAL_ERROR", "python -m worker"),
        ({"status": "done", "result": '{"superseded":true}'}, "INTERNAL_ERROR", "upload it again"),
    ],
    ids=["canceled", "timeout", "exhausted", "store", "strange", "echo", "nonsense", "superseded"],
)  # fmt: skip
async def test_a_job_that_ended_badly(
    imagers: ImageMaker, job: dict[str, str], code: str, words: str
) -> None:
    rig = await imagers(read=False)
    image_id, _ = await stranded(rig, **job)
    await rig.service.run_once()
    assert words in await ended_with(rig, image_id, code)


async def test_a_job_that_ended_well(imagers: ImageMaker) -> None:
    """The job's own result ends the image, even if the stream has lost it."""
    rig = await imagers(read=False)
    image_id, job_id = await stranded(rig, status="done", result="{}")
    values = (image_id, "processed", f"images/{image_id}.webp", SHA, "etag", "10", "image/webp")
    values += ("40", "30", "20", "15", "2026-02-24T10:00:00Z")
    result = {**dict(zip(RESULT_FIELDS, values)), "details": {}}
    await rig.client.hset(rig.keys.job(job_id), "result", json.dumps(result))
    await rig.service.run_once()
    record = await rig.record(image_id)
    assert record.result is not None
    assert record.result.sha256 == SHA
    assert [entry["status"] for entry in await rig.entries()] == ["processed"]
    assert rig.spooled() == []
    # The result of another image does not apply.
    other, other_job = await stranded(rig, status="done", result=json.dumps(result))
    del other_job
    await rig.client.delete(rig.images.keys.reconciler)
    await rig.service.run_once()
    await ended_with(rig, other, "INTERNAL_ERROR")


async def test_waiting_and_running_images_are_left_alone(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    waiting = await rig.upload(photo())
    running, _ = await stranded(rig, status="running")
    await rig.service.run_once()
    for image_id in (waiting, running):
        assert (await rig.record(image_id)).status.value == "processing"
    assert len(rig.spooled()) == 2
    assert await rig.entries() == []


async def test_one_worker_at_a_time_reconciles(imagers: ImageMaker, worker: Any) -> None:
    rig = await imagers(read=False, image_reconcile_s=60)
    other = await imagers(read=False, image_reconcile_s=60, identity=worker._replace(consumer="c2"))
    await rig.service.run_once()
    image_id, _ = await stranded(rig)
    await other.service.run_once()
    assert (await rig.record(image_id)).status.value == "processing"
    assert 0 < await rig.client.pttl(rig.images.keys.reconciler) <= 60_000
    await rig.client.delete(rig.images.keys.reconciler)
    await other.service.run_once()
    await ended_with(rig, image_id, "INTERNAL_ERROR")


async def test_it_runs_periodically(imagers: ImageMaker) -> None:
    rig = await imagers(read=False, image_reconcile_s=0.05)
    image_id, _ = await stranded(rig)
    running = asyncio.create_task(rig.service.run())

    async def ended() -> bool:
        return (await rig.record(image_id)).ended

    await eventually(ended)
    await cancel(running)


async def test_a_corrupt_image_does_not_block_the_others(
    imagers: ImageMaker,
) -> None:
    rig = await imagers(read=False)
    broken, _ = await stranded(rig)
    image_id, _ = await stranded(rig)
    await rig.client.delete(rig.images.keys.status(broken))
    await rig.client.set(rig.images.keys.status(broken), "no hash")
    await rig.service.run_once()
    assert (await rig.record(image_id)).ended
    assert not (await rig.record(broken)).ended


async def test_a_redis_that_refuses_has_not_lost_a_job(
    fake_imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a Redis that is loading: an error does not mean that the job is lost."""
    rig = await fake_imagers(read=False)
    image_id = await rig.upload(photo())
    find, loading = rig.client.pipeline, ResponseError("LOADING Redis is loading the dataset")

    class Refusing:
        def __init__(self) -> None:
            self.asked = 0

        def hmget(self, *args: Any) -> None:
            self.asked += 1

        async def execute(self, raise_on_error: bool = True) -> list[Exception]:
            return [loading] * self.asked

    looks = rig.service.reconciler._find_stranded
    inflight = await rig.images.inflight(10)
    monkeypatch.setattr(rig.client, "pipeline", lambda **options: Refusing())
    assert await looks(inflight) == {}
    with pytest.raises(StoreUnavailable, match="LOADING"):
        await rig.image_reader.progress([image_id])
    monkeypatch.setattr(rig.client, "pipeline", find)
    assert (await rig.record(image_id)).status.value == "processing"
