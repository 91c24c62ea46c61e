"""Clean-up removes unneeded files and keeps all others."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.support.worker.images import ImageMaker, ImageWorker, photo
from worker.features.images.cleanup import STORE_ID_FILE

pytestmark = pytest.mark.fakeredis_only

UPLOAD = "0123456789abcdef"
MINUTES, HOURS, DAYS = 60, 3600, 24 * 3600


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


async def test_uploads_that_wait_stay_however_long(imagers: ImageMaker) -> None:
    worker = await imagers(read=False)
    image_id, path = await spool_file(worker)
    file = aged(path, 10 * HOURS)
    assert await worker.service.cleaner.clean_spool() == 0
    # A superseded upload is removed.
    worker.spool.create(image_id, UPLOAD).commit()
    former = aged(worker.spool.path(image_id, UPLOAD), 2 * MINUTES)
    assert await worker.service.cleaner.clean_spool() == 1
    assert (file.exists(), former.exists()) == (True, False)


async def test_uploads_of_images_that_ended_or_were_deleted_go(imagers: ImageMaker) -> None:
    worker = await imagers(read=False)
    (one, ended), (two, deleted), (three, fresh) = [await spool_file(worker) for _ in range(3)]
    for image_id in (one, three):
        await worker.client.hset(worker.images.keys.record(image_id), "status", "failed")
    await worker.images.delete(two)
    aged(ended, 2 * MINUTES)
    aged(deleted, 2 * MINUTES)
    assert await worker.service.cleaner.clean_spool() == 1
    # This may be the wrong Redis: without a record, a file is kept for a day.
    assert (ended.exists(), deleted.exists(), fresh.exists()) == (False, True, True)
    aged(deleted, 20 * HOURS)
    assert await worker.service.cleaner.clean_spool() == 0
    aged(deleted, 2 * DAYS)
    assert await worker.service.cleaner.clean_spool() == 1
    assert not deleted.exists()


async def test_an_unsubmitted_upload_goes_after_an_hour(imagers: ImageMaker) -> None:
    worker = await imagers(read=False)
    image_id = await worker.create()
    await worker.images.claim(image_id, UPLOAD, 60_000)
    worker.spool.create(image_id, UPLOAD).commit()
    path = worker.spool.path(image_id, UPLOAD)
    aged(path, 30 * MINUTES)
    assert await worker.service.cleaner.clean_spool() == 0
    aged(path, 2 * HOURS)
    assert await worker.service.cleaner.clean_spool() == 1


async def test_partial_files_go_once_they_are_abandoned(imagers: ImageMaker) -> None:
    worker = await imagers(read=False)
    image_id = await worker.create()
    half = worker.spool.create(image_id, UPLOAD)
    output = worker.spool.output(image_id, UPLOAD, 1)
    output.write_bytes(b"made")
    stranger = worker.spool.directory / "README"
    stranger.write_text("somebody else's")
    aged(stranger, 10 * DAYS)
    assert await worker.service.cleaner.clean_spool() == 0
    for path in worker.spool.directory.iterdir():
        aged(path, 2 * HOURS)
    assert await worker.service.cleaner.clean_spool() == 2
    assert worker.spooled() == ["README"]
    half.discard()


async def test_objects_without_a_record_go_after_a_day(imagers: ImageMaker) -> None:
    worker = await imagers(read=False)
    storage = worker.service.storage
    await worker.service.cleaner.claim_store()
    known = await worker.create()
    for image_id in (known, "gone", "fresh"):
        await storage.put(f"images/{image_id}.webp", b"x", "image/webp")
    await storage.put("thumbs/gone.webp", b"x", "image/webp")
    directory = worker.home / "store"
    (directory / "images" / ".gone.webp.1234.part").write_bytes(b"half")
    for path in directory.rglob("*"):
        if path.is_file() and "fresh" not in path.name:
            aged(path, 2 * DAYS)
    assert await worker.service.cleaner.run_once() == 2
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}
    here = {f"images/{known}.webp", "images/fresh.webp", "thumbs/gone.webp"}
    assert left == {STORE_ID_FILE, *here}
    assert await worker.service.cleaner.run_once() == 0


async def old_objects(worker: ImageWorker, *image_ids: str) -> list[Path]:
    """Objects that are two days old."""
    for image_id in image_ids:
        await worker.service.storage.put(f"images/{image_id}.webp", b"x", "image/webp")
    images = worker.home / "store" / "images"
    return [aged(images / f"{image_id}.webp", 2 * DAYS) for image_id in image_ids]


async def test_an_emptied_redis_removes_nothing(
    imagers: ImageMaker, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await imagers(read=False)
    sweeper, storage = worker.service.cleaner, worker.service.storage
    await sweeper.claim_store()
    store_id = (worker.home / "store" / STORE_ID_FILE).read_text().strip()
    [kept] = await old_objects(worker, await worker.create())
    await worker.client.flushall()
    # The same after new images were created.
    await old_objects(worker, await worker.create())
    for _ in range(2):
        await sweeper.claim_store()
        assert await sweeper.clean_store(storage) == 0
    assert kept.exists()
    assert f"redis-cli SADD {worker.images.keys.stores} {store_id}" in caplog.text
    # An operator confirms that it was intended.
    await worker.client.sadd(worker.images.keys.stores, store_id)
    assert await sweeper.clean_store(storage) == 1
    assert not kept.exists()


async def test_a_directory_without_an_id_removes_nothing(
    imagers: ImageMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """It may belong to another Redis, unless this one has a record of every image."""
    worker = await imagers(read=False)
    sweeper, storage = worker.service.cleaner, worker.service.storage
    known, strange = await old_objects(worker, await worker.create(), "somebodys")
    await sweeper.claim_store()
    assert await sweeper.clean_store(storage) == 0
    assert strange.exists()
    assert not (worker.home / "store" / STORE_ID_FILE).exists()
    assert "no record of 1 image" in caplog.text
    strange.unlink()
    await sweeper.claim_store()
    [gone] = await old_objects(worker, "gone")
    assert await sweeper.clean_store(storage) == 1
    assert (known.exists(), gone.exists()) == (True, False)


async def test_two_workers_may_begin_at_once(imagers: ImageMaker) -> None:
    first = await imagers(read=False)
    second = await imagers(read=False, consumer="c2")
    await asyncio.gather(first.service.cleaner.claim_store(), second.service.cleaner.claim_store())
    [gone] = await old_objects(first, "gone")
    assert await second.service.cleaner.clean_store(second.service.storage) == 1
    assert not gone.exists()


async def test_a_record_of_a_later_version_is_a_record(imagers: ImageMaker) -> None:
    worker = await imagers(read=False)
    await worker.service.cleaner.claim_store()
    image_id = await worker.create()
    [kept] = await old_objects(worker, image_id)
    await worker.client.hset(worker.images.keys.record(image_id), "status", "archived")
    assert await worker.service.cleaner.clean_store(worker.service.storage) == 0
    assert kept.exists()


async def spool_file(worker: ImageWorker) -> tuple[str, Path]:
    """An image that waits, and its spool file."""
    image_id = await worker.upload(photo())
    return image_id, worker.spool.path(image_id, (await worker.record(image_id)).upload_id)
