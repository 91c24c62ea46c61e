"""Fencing: an attempt that lost its image, upload or job writes nothing and leaves no files."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from sluice.common.contracts.images import ErrorCode
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import ProcessingAttempt, ProcessingFailure
from sluice.worker.features.images import processor
from tests.support.waiting import eventually
from tests.support.worker import image_processes
from tests.support.worker.images import ImageMaker, ImageWorker, photo


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "process", image_processes.wait_for_go)


async def begun(worker: ImageWorker, image_id: str) -> ImageRecord:
    """The record of an image that a process works on."""
    record = await worker.record(image_id)
    mark = worker.home / f"began-{image_id}.{record.upload_id}"
    await eventually(mark.exists, 20)
    return record


async def fail(worker: ImageWorker, image_id: str) -> None:
    """End the image, as another worker does."""
    record = await worker.record(image_id)
    failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "by another worker")
    await worker.images.fail(ProcessingAttempt(image_id, record.upload_id), failed)


async def replace_upload(worker: ImageWorker, image_id: str) -> None:
    await fail(worker, image_id)
    await worker.images.reopen(image_id)
    await worker.upload(photo(seed=2), image_id=image_id)


async def take_over(worker: ImageWorker, job_id: str) -> None:
    """Begin another attempt at the job, as another worker does."""
    lease = worker.keys.lease(job_id)
    await worker.client.hset(lease, mapping={"attempt": "2", "token": "another"})


async def check_superseded(worker: ImageWorker, job_id: str) -> None:
    assert await worker.settled(job_id) == b"done"
    assert (await worker.result(job_id))["superseded"] is True


async def abandoned(worker: ImageWorker) -> None:
    """Wait until the attempt has ended."""
    await eventually(lambda: worker.consumer.slots.busy == 0, 20)


class HeldPut:
    """Holds the first put of an object, before or after the object is written."""

    def __init__(self, worker: ImageWorker, patch: pytest.MonkeyPatch, *, after: bool) -> None:
        self._put = worker.service.storage.put
        self._after = after
        self._begun, self.on = asyncio.Event(), asyncio.Event()
        patch.setattr(worker.service.storage, "put", self)

    async def __call__(self, *args: Any) -> Any:
        if self._begun.is_set():
            return await self._put(*args)
        stored = await self._put(*args) if self._after else None
        self._begun.set()
        await self.on.wait()
        return stored or await self._put(*args)

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.wait(), 20)


@pytest.mark.parametrize(
    "how", ["deleted", pytest.param("replaced", marks=pytest.mark.fakeredis_only)]
)
async def test_an_upload_superseded_while_it_is_processed(
    imager: ImageWorker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "deleted":  # its process is killed: it would not end
        monkeypatch.setattr(processor, "process", image_processes.hang_after_go)
    image_id = await imager.upload(photo(seed=1))
    former = await begun(imager, image_id)
    if how == "deleted":
        await imager.images.delete(image_id)
    else:
        await replace_upload(imager, image_id)
    imager.go()
    await check_superseded(imager, former.job_id)
    if how == "deleted":
        assert imager.stored(image_id) is None
        assert await imager.entries() == []
        assert await imager.client.keys(imager.images.keys.status("*")) == []
        await eventually(lambda: imager.service.pool.pids == [])
    else:
        assert (await imager.image_ended(image_id)).upload_id != former.upload_id
        statuses = [entry["status"] for entry in await imager.entries(image_id)]
        assert statuses == ["failed", "processed"]
    await eventually(lambda: imager.spooled() == [])


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("how", "after"),
    [("canceled", False), ("canceled", True), ("deleted", True), ("failed", False)],
)
async def test_an_image_that_ends_while_it_is_stored(
    imager: ImageWorker, monkeypatch: pytest.MonkeyPatch, how: str, after: bool
) -> None:
    """A put cannot be stopped; its object is removed when it has ended. The first end counts."""
    put = HeldPut(imager, monkeypatch, after=after)
    imager.go()
    image_id = await imager.upload()
    job_id = (await imager.record(image_id)).job_id
    await put.begun()
    if how == "failed":
        await fail(imager, image_id)
    else:
        await imager.images.delete(image_id)
    if how == "canceled":
        await imager.cancel(job_id)
        assert await imager.settled(job_id) == b"canceled"
    put.on.set()
    if how == "failed":
        await imager.failed(image_id, "INTERNAL_ERROR")
        assert (await imager.error(job_id))["kind"] == "image_failed"
    elif how == "deleted":
        await check_superseded(imager, job_id)
    await eventually(lambda: not imager.service.orphans._waiting)
    assert imager.stored(image_id) is None
    assert len(await imager.entries()) == int(how == "failed")
    await eventually(lambda: imager.spooled() == [])


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("replaced", ["upload", "attempt"])
async def test_a_stalled_worker_does_not_overwrite_a_later_object(
    imager: ImageWorker, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """A worker that was stalled before its put, while another one completed the job."""
    put = HeldPut(imager, monkeypatch, after=False)
    imager.go()
    image_id = await imager.upload(photo(seed=1))
    former = await imager.record(image_id)
    await put.begun()
    if replaced == "upload":
        await replace_upload(imager, image_id)
        counting = (await imager.image_ended(image_id)).result.sha256
    else:
        await imager.service.storage.put(f"images/{image_id}.webp", b"another's", "image/webp")
        await take_over(imager, former.job_id)
        counting = hashlib.sha256(b"another's").hexdigest()
    put.on.set()
    await abandoned(imager)
    assert hashlib.sha256(imager.stored(image_id) or b"").hexdigest() == counting


async def test_an_attempt_that_was_taken_over_writes_nothing(imager: ImageWorker) -> None:
    image_id = await imager.upload()
    record = await begun(imager, image_id)
    await take_over(imager, record.job_id)
    before = await imager.shown(image_id)
    imager.go()
    await abandoned(imager)
    assert await imager.shown(image_id) == before
    assert await imager.entries() == []
    assert (await imager.record(image_id)).status.value == "processing"
    assert imager.spooled() == [f"{image_id}.{record.upload_id}"]


async def test_a_stopping_worker_releases_its_image(imagers: ImageMaker) -> None:
    first = await imagers()
    image_id = await first.upload()
    record = await begun(first, image_id)
    await first.stop(0.1)
    assert (await first.record(image_id)).status.value == "processing"
    assert first.spooled() == [f"{image_id}.{record.upload_id}"]
    first.go()
    second = await imagers(consumer="c2")
    ended = await second.image_ended(image_id)
    assert ended.status.value == "processed"
    assert len(await second.entries()) == 1
    assert second.spooled() == []
