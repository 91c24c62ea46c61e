"""Fencing: an attempt that lost its image, upload or job writes nothing and leaves no files."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from common.contracts.images import ErrorCode
from common.features.images.types import ProcessingAttempt, ProcessingFailure
from tests.conftest import eventually
from tests.worker.features.images import process_stubs
from tests.worker.features.images.kit import ImageMaker, ImageRig, photo
from worker.features.images import processor


@pytest.fixture(autouse=True)
def _waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "process", process_stubs.wait_for_go)


async def begun(rig: ImageRig, image_id: str) -> Any:
    """The record of an image that a process works on."""
    record = await rig.record(image_id)
    mark = rig.home / f"began-{image_id}.{record.upload_id}"
    await eventually(mark.exists, 20)
    return record


def go(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "go").touch()


async def test_an_image_deleted_while_it_is_processed(imagers: ImageMaker) -> None:
    rig = await imagers()
    image_id = await rig.upload(photo())
    record = await begun(rig, image_id)
    await rig.images.delete(image_id)
    go(rig.home)
    assert await rig.settled(record.job_id) == b"done"
    assert (await rig.core_result(record.job_id))["superseded"] is True
    await eventually(lambda: rig.spooled() == [])
    assert rig.stored(image_id) is None
    assert await rig.entries() == []
    assert await rig.client.keys(rig.images.keys.status("*")) == []
    await eventually(lambda: rig.service.pool.pids == [])


async def test_one_deleted_after_it_was_stored(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await imagers()
    put = rig.service.storage.put

    async def put_and_delete(key: str, *args: Any) -> Any:
        stored = await put(key, *args)
        await rig.images.delete(image_id)
        return stored

    monkeypatch.setattr(rig.service.storage, "put", put_and_delete)
    go(rig.home)
    image_id = await rig.upload(photo())
    job_id = (await rig.record(image_id)).job_id
    assert await rig.settled(job_id) == b"done"
    assert (await rig.core_result(job_id))["superseded"] is True
    assert rig.stored(image_id) is None
    assert await rig.entries() == []
    assert rig.spooled() == []


@pytest.mark.parametrize("when", ["while", "after"])
async def test_one_deleted_and_canceled_about_when_it_is_stored(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A put cannot be stopped; its object is removed when it has ended."""
    rig = await imagers()
    put, begun, on = rig.service.storage.put, asyncio.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        if when == "after":
            stored = await put(*args)
        begun.set()
        await on.wait()
        return await put(*args) if when == "while" else stored

    monkeypatch.setattr(rig.service.storage, "put", slowly)
    go(rig.home)
    image_id = await rig.upload(photo())
    job_id = (await rig.record(image_id)).job_id
    await asyncio.wait_for(begun.wait(), 20)
    await rig.images.delete(image_id)
    await rig.cancel(job_id)
    assert await rig.settled(job_id) == b"canceled"
    on.set()
    await eventually(lambda: not rig.service.orphans._waiting)
    assert rig.stored(image_id) is None
    assert await rig.entries() == []
    await eventually(lambda: rig.spooled() == [])


async def test_a_superseded_upload(imagers: ImageMaker) -> None:
    """The image was failed and reopened, and another upload replaced this one."""
    rig = await imagers()
    image_id = await rig.upload(photo(seed=1))
    former = await begun(rig, image_id)
    failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "somebody said so")
    await rig.images.fail(ProcessingAttempt(image_id, former.upload_id), failed)
    await rig.images.reopen(image_id)
    await rig.upload(photo(seed=2), image_id=image_id)
    go(rig.home)
    assert await rig.settled(former.job_id) == b"done"
    assert (await rig.core_result(former.job_id))["superseded"] is True
    record = await rig.image_ended(image_id)
    assert record.upload_id != former.upload_id
    statuses = [entry["status"] for entry in await rig.entries(image_id)]
    assert statuses == ["failed", "processed"]
    await eventually(lambda: rig.spooled() == [])


@pytest.mark.parametrize("replaced", ["upload", "attempt"])
async def test_a_stalled_worker_does_not_overwrite_a_later_object(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """A worker that was stalled before its put, while another one completed the job."""
    rig = await imagers()
    put, halted, on, late = rig.service.storage.put, asyncio.Event(), asyncio.Event(), [True]

    async def stands_still(*args: Any) -> Any:
        if late:
            late.clear()
            halted.set()
            await on.wait()
        return await put(*args)

    monkeypatch.setattr(rig.service.storage, "put", stands_still)
    go(rig.home)
    image_id = await rig.upload(photo(seed=1))
    former = await rig.record(image_id)
    await asyncio.wait_for(halted.wait(), 20)
    if replaced == "upload":
        failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "somebody said so")
        await rig.images.fail(ProcessingAttempt(image_id, former.upload_id), failed)
        await rig.images.reopen(image_id)
        await rig.upload(photo(seed=2), image_id=image_id)
        counting = (await rig.image_ended(image_id)).result.sha256
    else:
        await rig.service.storage.put(f"images/{image_id}.webp", b"another's", "image/webp")
        lease = rig.keys.lease(former.job_id)
        await rig.client.hset(lease, mapping={"attempt": "2", "token": "another"})
        counting = hashlib.sha256(b"another's").hexdigest()
    on.set()

    async def abandoned() -> bool:
        return rig.consumer.slots.busy == 0

    await eventually(abandoned, 20)
    assert hashlib.sha256(rig.stored(image_id) or b"").hexdigest() == counting


async def test_an_image_that_ended_before_the_put(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first end counts; here it is a failure."""
    rig = await imagers()
    put = rig.service.storage.put

    async def put_late(*args: Any) -> Any:
        record = await rig.record(image_id)
        failed = ProcessingFailure(ErrorCode.INTERNAL_ERROR, "somebody said so")
        await rig.images.fail(ProcessingAttempt(image_id, record.upload_id), failed)
        return await put(*args)

    monkeypatch.setattr(rig.service.storage, "put", put_late)
    image_id = await rig.create()
    await rig.upload(photo(), image_id=image_id)
    go(rig.home)
    record = await rig.failed(image_id, "INTERNAL_ERROR")
    assert (await rig.error(record.job_id))["kind"] == "image_failed"
    assert rig.stored(image_id) is None


async def test_an_attempt_that_was_taken_over_writes_nothing(imagers: ImageMaker) -> None:
    rig = await imagers()
    image_id = await rig.upload(photo())
    record = await begun(rig, image_id)
    lease = rig.keys.lease(record.job_id)
    await rig.client.hset(lease, mapping={"attempt": "2", "token": "another"})
    before = await rig.shown(image_id)
    go(rig.home)

    async def abandoned() -> bool:
        return rig.consumer.slots.busy == 0

    await eventually(abandoned, 20)
    assert await rig.shown(image_id) == before
    assert await rig.entries() == []
    assert (await rig.record(image_id)).status.value == "processing"
    assert rig.spooled() == [f"{image_id}.{record.upload_id}"]


async def test_a_stopping_worker_releases_its_image(imagers: ImageMaker, worker: Any) -> None:
    first = await imagers()
    image_id = await first.upload(photo())
    record = await begun(first, image_id)
    await first.stop(0.1)
    assert (await first.record(image_id)).status.value == "processing"
    assert first.spooled() == [f"{image_id}.{record.upload_id}"]
    go(first.home)
    second = await imagers(identity=worker._replace(consumer="c2"))
    ended = await second.image_ended(image_id)
    assert ended.status.value == "processed"
    assert len(await second.entries()) == 1
    assert second.spooled() == []
