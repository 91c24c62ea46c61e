"""The reconciler ends images whose core job has ended without them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from redis.exceptions import ResponseError

from sluice.common.aio import cancel
from sluice.common.errors import StoreUnavailable
from tests.support.store.images import RESULT_FIELDS
from tests.support.waiting import eventually
from tests.support.worker.images import ImageMaker, ImageWorker

pytestmark = pytest.mark.fakeredis_only

SHA = "ab" * 32


async def stranded(worker: ImageWorker, **job: str) -> tuple[str, str]:
    """An image whose job was never taken and has these fields; returns both ids."""
    image_id = await worker.upload()
    job_id = (await worker.record(image_id)).job_id
    if job:
        await worker.client.hset(worker.keys.job(job_id), mapping=job)
    else:
        await worker.client.delete(worker.keys.job(job_id))
    return image_id, job_id


async def ended_with(worker: ImageWorker, image_id: str, code: str) -> str:
    """Check that it failed with this code and left nothing; returns its message."""
    record = await worker.record(image_id)
    assert record.failure is not None, record
    assert record.failure.error_code == code
    [entry] = await worker.entries(image_id)
    assert entry["error_code"] == code
    await eventually(lambda: worker.spooled() == [])
    assert await worker.client.zcard(worker.images.keys.inflight) == 0
    return record.failure.error_message


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        ({}, "INTERNAL_ERROR", "upload it again"),
        ({"status": "canceled"}, "CANCELED", "canceled"),
        ({"status": "error", "error": '{"kind":"timeout","message":"ran longer than 3600 s"}'},
         "TIMEOUT", "ran longer than 3600 s"),
        ({"status": "error", "error": '{"kind":"attempts_exhausted","message":"begun 5 times"}'},
         "INTERNAL_ERROR", "begun 5 times"),
        ({"status": "error", "error": '{"kind":"image_store_failed","message":"no bucket"}'},
         "UPLOAD_FAILED", "no bucket"),
        ({"status": "error", "error": "no JSON"}, "INTERNAL_ERROR", "its core job failed"),
        ({"status": "done", "result": '{"echo":{}}'}, "INTERNAL_ERROR", "python -m sluice.worker"),
        ({"status": "done", "result": "nonsense"}, "INTERNAL_ERROR", "python -m sluice.worker"),
        ({"status": "done", "result": '{"superseded":true}'}, "INTERNAL_ERROR", "upload it again"),
    ],
    ids=["gone", "canceled", "timeout", "exhausted", "store", "strange", "echo", "nonsense",
         "superseded"],
)  # fmt: skip
async def test_a_job_that_ended_badly(
    idle: ImageWorker, job: dict[str, str], code: str, words: str
) -> None:
    image_id, _ = await stranded(idle, **job)
    await idle.service.run_once()
    assert words in await ended_with(idle, image_id, code)


async def test_a_job_that_ended_well(idle: ImageWorker) -> None:
    """The job's own result ends the image, even if the stream has lost it."""
    image_id, job_id = await stranded(idle, status="done", result="{}")
    values = (image_id, "processed", f"images/{image_id}.webp", SHA, "etag", "10", "image/webp")
    values += ("40", "30", "20", "15", "2026-02-24T10:00:00Z")
    result = {**dict(zip(RESULT_FIELDS, values)), "details": {}}
    await idle.client.hset(idle.keys.job(job_id), "result", json.dumps(result))
    await idle.service.run_once()
    record = await idle.record(image_id)
    assert record.result.sha256 == SHA
    assert [entry["status"] for entry in await idle.entries()] == ["processed"]
    assert idle.spooled() == []
    # The result of another image does not apply.
    other, _ = await stranded(idle, status="done", result=json.dumps(result))
    await idle.client.delete(idle.images.keys.reconciler)
    await idle.service.run_once()
    await ended_with(idle, other, "INTERNAL_ERROR")


async def test_waiting_and_running_images_are_left_alone(idle: ImageWorker) -> None:
    waiting = await idle.upload()
    running, _ = await stranded(idle, status="running")
    await idle.service.run_once()
    for image_id in (waiting, running):
        assert (await idle.record(image_id)).status.value == "processing"
    assert len(idle.spooled()) == 2
    assert await idle.entries() == []


async def test_one_worker_at_a_time_reconciles(imagers: ImageMaker) -> None:
    worker = await imagers(read=False, image_reconcile_s=60)
    other = await imagers(read=False, image_reconcile_s=60, consumer="c2")
    await worker.service.run_once()
    image_id, _ = await stranded(worker)
    await other.service.run_once()
    assert (await worker.record(image_id)).status.value == "processing"
    assert 0 < await worker.client.pttl(worker.images.keys.reconciler) <= 60_000
    await worker.client.delete(worker.images.keys.reconciler)
    await other.service.run_once()
    await ended_with(worker, image_id, "INTERNAL_ERROR")


async def test_a_corrupt_image_does_not_block_the_others(imagers: ImageMaker) -> None:
    worker = await imagers(read=False, image_reconcile_s=0.05)
    broken, _ = await stranded(worker)
    image_id, _ = await stranded(worker)
    await worker.client.delete(worker.images.keys.status(broken))
    await worker.client.set(worker.images.keys.status(broken), "no hash")
    running = asyncio.create_task(worker.service.run())  # periodically

    async def ended() -> bool:
        return (await worker.record(image_id)).ended

    await eventually(ended)
    await cancel(running)
    assert not (await worker.record(broken)).ended


async def test_a_redis_that_refuses_has_not_lost_a_job(idle: ImageWorker, monkeypatch: Any) -> None:
    """For example a Redis that is loading: an error does not mean that the job is lost."""
    image_id = await idle.upload()
    loading = ResponseError("LOADING Redis is loading the dataset")

    class Refusing:
        def __init__(self) -> None:
            self.asked = 0

        def hmget(self, *args: Any) -> None:
            self.asked += 1

        async def execute(self, raise_on_error: bool = True) -> list[Exception]:
            return [loading] * self.asked

    inflight = await idle.images.inflight(10)
    with monkeypatch.context() as patch:
        patch.setattr(idle.client, "pipeline", lambda **options: Refusing())
        assert await idle.service.reconciler._find_stranded(inflight) == {}
        with pytest.raises(StoreUnavailable, match="LOADING"):
            await idle.image_reader.progress([image_id])
    assert (await idle.record(image_id)).status.value == "processing"
