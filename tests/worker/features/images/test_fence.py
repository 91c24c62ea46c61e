"""Fencing: an attempt that lost its image, upload or job writes nothing and leaves no files."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from common.contracts.images import ErrorCode
from common.features.images.types import ProcessingAttempt, ProcessingFailure
from tests.support.waiting import eventually
from tests.support.worker import image_processes
from tests.support.worker.images import ImageMaker, ImageWorker, photo
from worker.features.images import processor


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "process", image_processes.wait_for_go)


async def begun(worker: ImageWorker, image_id: str) -> Any:
    """The record of an image that a process works on."""
    record = await worker.record(image_id)
    mark = worker.home / f"began-{image_id}.{record.upload_id}"
    await eventually(mark.exists, 20)
    return record


def go(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "go").touch()


async def test_an_image_deleted_while_it_is_processed(imagers: ImageMaker) -> None:
    worker = await imagers()
    image_id = await worker.upload(photo())
    record = await begun(worker, image_id)
    await worker.images.delete(image_id)
    go(worker.home)
    assert await worker.settled(record.job_id) == b"done"
    assert (await worker.core_result(record.job_id))["superseded"] is True
    await eventually(lambda: worker.spooled() == [])
    assert worker.stored(image_id) is None
    assert await worker.entries() == []
    assert await worker.client.keys(worker.images.keys.status("*")) == []
    await eventually(lambda: worker.service.pool.pids == [])


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("when", ["while", "after"])
async def test_one_deleted_and_canceled_about_when_it_is_stored(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A put cannot be stopped; its object is removed when it has ended."""
    worker = await imagers()
    put, begun, on = worker.service.storage.put, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        if when == "after":
            stored = await put(*args)
        begun.set()
        await on.wait()
        return await put(*args) if when == "while" else stored

    monkeypatch.setattr(worker.service.storage, "put", slowly)
    go(worker.home)
    image_id = await worker.upload(photo())
    job_id = (await worker.record(image_id)).job_id
    await asyncio.wait_for(begun.wait(), 20)
    await worker.images.delete(image_id)
    await worker.cancel(job_id)
    assert await worker.settled(job_id) == b"canceled"
    on.set()
    await eventually(lambda: not worker.service.orphans._waiting)
    assert worker.stored(image_id) is None
    assert await worker.entries() == []
    await eventually(lambda: worker.spooled() == [])


@pytest.mark.fakeredis_only
async def test_a_superseded_upload(imagers: ImageMaker) -> None:
    """The image was failed and reopened, and another upload replaced this one."""
    worker = await imagers()
    image_id = await worker.upload(photo(seed=1))
    former = await begun(worker, image_id)
    failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "somebody said so")
    await worker.images.fail(ProcessingAttempt(image_id, former.upload_id), failed)
    await worker.images.reopen(image_id)
    await worker.upload(photo(seed=2), image_id=image_id)
    go(worker.home)
    assert await worker.settled(former.job_id) == b"done"
    assert (await worker.core_result(former.job_id))["superseded"] is True
    record = await worker.image_ended(image_id)
    assert record.upload_id != former.upload_id
    statuses = [entry["status"] for entry in await worker.entries(image_id)]
    assert statuses == ["failed", "processed"]
    await eventually(lambda: worker.spooled() == [])


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("replaced", ["upload", "attempt"])
async def test_a_stalled_worker_does_not_overwrite_a_later_object(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """A worker that was stalled before its put, while another one completed the job."""
    worker = await imagers()
    put, halted, on, late = worker.service.storage.put, asyncio.Event(), asyncio.Event(), [True]

    async def stands_still(*args: Any) -> Any:
        if late:
            late.clear()
            halted.set()
            await on.wait()
        return await put(*args)

    monkeypatch.setattr(worker.service.storage, "put", stands_still)
    go(worker.home)
    image_id = await worker.upload(photo(seed=1))
    former = await worker.record(image_id)
    await asyncio.wait_for(halted.wait(), 20)
    if replaced == "upload":
        failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "somebody said so")
        await worker.images.fail(ProcessingAttempt(image_id, former.upload_id), failed)
        await worker.images.reopen(image_id)
        await worker.upload(photo(seed=2), image_id=image_id)
        counting = (await worker.image_ended(image_id)).result.sha256
    else:
        await worker.service.storage.put(f"images/{image_id}.webp", b"another's", "image/webp")
        lease = worker.keys.lease(former.job_id)
        await worker.client.hset(lease, mapping={"attempt": "2", "token": "another"})
        counting = hashlib.sha256(b"another's").hexdigest()
    on.set()
    await abandoned(worker)
    assert hashlib.sha256(worker.stored(image_id) or b"").hexdigest() == counting


async def test_an_attempt_that_was_taken_over_writes_nothing(imagers: ImageMaker) -> None:
    worker = await imagers()
    image_id = await worker.upload(photo())
    record = await begun(worker, image_id)
    lease = worker.keys.lease(record.job_id)
    await worker.client.hset(lease, mapping={"attempt": "2", "token": "another"})
    before = await worker.shown(image_id)
    go(worker.home)
    await abandoned(worker)
    assert await worker.shown(image_id) == before
    assert await worker.entries() == []
    assert (await worker.record(image_id)).status.value == "processing"
    assert worker.spooled() == [f"{image_id}.{record.upload_id}"]


async def test_a_stopping_worker_releases_its_image(imagers: ImageMaker) -> None:
    first = await imagers()
    image_id = await first.upload(photo())
    record = await begun(first, image_id)
    await first.stop(0.1)
    assert (await first.record(image_id)).status.value == "processing"
    assert first.spooled() == [f"{image_id}.{record.upload_id}"]
    go(first.home)
    second = await imagers(consumer="c2")
    ended = await second.image_ended(image_id)
    assert ended.status.value == "processed"
    assert len(await second.entries()) == 1
    assert second.spooled() == []


async def abandoned(worker: ImageWorker) -> None:
    """Wait until the attempt has ended."""
    await eventually(lambda: worker.consumer.slots.busy == 0, 20)


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("how", ["deleted", "failed"])
async def test_an_image_that_ends_while_it_is_stored(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The first end counts, also if it is a failure."""
    worker = await imagers()
    put = worker.service.storage.put

    async def put_and_end(*args: Any) -> Any:
        if how == "deleted":
            stored = await put(*args)
            await worker.images.delete(image_id)
            return stored
        record = await worker.record(image_id)
        failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "by another worker")
        await worker.images.fail(ProcessingAttempt(image_id, record.upload_id), failed)
        return await put(*args)

    monkeypatch.setattr(worker.service.storage, "put", put_and_end)
    image_id = await worker.create()
    await worker.upload(photo(), image_id=image_id)
    go(worker.home)
    if how == "deleted":
        [job_id] = await job_ids(worker)
        assert await worker.settled(job_id) == b"done"
        assert (await worker.core_result(job_id))["superseded"] is True
        assert await worker.entries() == []
        assert worker.spooled() == []
    else:
        record = await worker.failed(image_id, "INTERNAL_ERROR")
        assert (await worker.error(record.job_id))["kind"] == "image_failed"
    assert worker.stored(image_id) is None


async def job_ids(worker: ImageWorker) -> list[str]:
    found = await worker.client.xrange(worker.keys.queue)
    return [fields[b"job_id"].decode() for _, fields in found]
