"""Clean-up removes unneeded files and keeps all others."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from common.jobs.store import WorkerIdentity
from tests.worker.features.images.kit import ImageMaker, ImageRig, photo
from worker.features.images.cleanup import STORE_ID_FILE

MINUTES, HOURS, DAYS = 60, 3600, 24 * 3600


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


async def uploads(rig: ImageRig) -> Path:
    """The spool file of an image that waits."""
    image_id = await rig.upload(photo())
    return rig.spool.path(image_id, (await rig.record(image_id)).upload_id)


async def test_uploads_that_wait_stay_however_long(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    file = aged(await uploads(rig), 10 * HOURS)
    assert await rig.service.cleaner.clean_spool() == 0
    assert file.exists()


async def test_uploads_of_images_that_ended_or_were_deleted_go(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    ended, deleted, fresh = [await uploads(rig) for _ in range(3)]
    for file in (ended, fresh):
        await rig.client.hset(rig.images.keys.record(file.name.split(".")[0]), "status", "failed")
    await rig.images.delete(deleted.name.split(".")[0])
    aged(ended, 2 * MINUTES)
    aged(deleted, 2 * MINUTES)
    assert await rig.service.cleaner.clean_spool() == 1
    # This may be the wrong Redis: without a record, a file is kept for a day.
    assert (ended.exists(), deleted.exists(), fresh.exists()) == (False, True, True)
    aged(deleted, 20 * HOURS)
    assert await rig.service.cleaner.clean_spool() == 0
    aged(deleted, 2 * DAYS)
    assert await rig.service.cleaner.clean_spool() == 1
    assert not deleted.exists()


async def test_superseded_uploads_go(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    file = await uploads(rig)
    image_id = file.name.split(".")[0]
    former = rig.spool.create(image_id, "0123456789abcdef")
    former.commit()
    aged(rig.spool.path(image_id, "0123456789abcdef"), 2 * MINUTES)
    assert await rig.service.cleaner.clean_spool() == 1
    assert file.exists()


async def test_an_unsubmitted_upload_goes_after_an_hour(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    image_id = await rig.create()
    await rig.images.claim(image_id, "0123456789abcdef", 60_000)
    rig.spool.create(image_id, "0123456789abcdef").commit()
    path = rig.spool.path(image_id, "0123456789abcdef")
    aged(path, 30 * MINUTES)
    assert await rig.service.cleaner.clean_spool() == 0
    aged(path, 2 * HOURS)
    assert await rig.service.cleaner.clean_spool() == 1


async def test_partial_files_go_once_they_are_abandoned(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    image_id = await rig.create()
    half = rig.spool.create(image_id, "0123456789abcdef")
    output = rig.spool.output(image_id, "0123456789abcdef", 1)
    output.write_bytes(b"made")
    stranger = rig.spool.directory / "README"
    stranger.write_text("somebody else's")
    aged(stranger, 10 * DAYS)
    assert await rig.service.cleaner.clean_spool() == 0
    for path in rig.spool.directory.iterdir():
        aged(path, 2 * HOURS)
    assert await rig.service.cleaner.clean_spool() == 2
    assert rig.spooled() == ["README"]
    half.discard()


async def test_objects_without_a_record_go_after_a_day(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    storage = rig.service.storage
    await rig.service.cleaner.claim_store()
    known = await rig.create()
    for image_id in (known, "gone", "fresh"):
        await storage.put(f"images/{image_id}.webp", b"x", "image/webp")
    await storage.put("thumbs/gone.webp", b"x", "image/webp")
    directory = rig.home / "store"
    (directory / "images" / ".gone.webp.1234.part").write_bytes(b"half")
    for path in directory.rglob("*"):
        if path.is_file() and "fresh" not in path.name:
            aged(path, 2 * DAYS)
    assert await rig.service.cleaner.run_once() == 2
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}
    here = {f"images/{known}.webp", "images/fresh.webp", "thumbs/gone.webp"}
    assert left == {STORE_ID_FILE, *here}
    assert await rig.service.cleaner.run_once() == 0


async def old_objects(rig: ImageRig, *image_ids: str) -> list[Path]:
    """Objects that are two days old."""
    for image_id in image_ids:
        await rig.service.storage.put(f"images/{image_id}.webp", b"x", "image/webp")
    images = rig.home / "store" / "images"
    return [aged(images / f"{image_id}.webp", 2 * DAYS) for image_id in image_ids]


async def test_an_emptied_redis_removes_nothing(
    imagers: ImageMaker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await imagers(read=False)
    sweeper, storage = rig.service.cleaner, rig.service.storage
    await sweeper.claim_store()
    store_id = (rig.home / "store" / STORE_ID_FILE).read_text().strip()
    [kept] = await old_objects(rig, await rig.create())
    await rig.client.flushall()
    # The same after new images were created.
    await old_objects(rig, await rig.create())
    for _ in range(2):
        await sweeper.claim_store()
        assert await sweeper.clean_store(storage) == 0
    assert kept.exists()
    assert f"redis-cli SADD {rig.images.keys.stores} {store_id}" in caplog.text
    # An operator confirms that it was intended.
    await rig.client.sadd(rig.images.keys.stores, store_id)
    assert await sweeper.clean_store(storage) == 1
    assert not kept.exists()


async def test_a_directory_without_an_id_removes_nothing(
    imagers: ImageMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """It may belong to another Redis, unless this one has a record of every image."""
    rig = await imagers(read=False)
    sweeper, storage = rig.service.cleaner, rig.service.storage
    known, strange = await old_objects(rig, await rig.create(), "somebodys")
    await sweeper.claim_store()
    assert await sweeper.clean_store(storage) == 0
    assert strange.exists()
    assert not (rig.home / "store" / STORE_ID_FILE).exists()
    assert "no record of 1 image" in caplog.text
    strange.unlink()
    await sweeper.claim_store()
    [gone] = await old_objects(rig, "gone")
    assert await sweeper.clean_store(storage) == 1
    assert (known.exists(), gone.exists()) == (True, False)


async def test_two_workers_may_begin_at_once(imagers: ImageMaker, worker: WorkerIdentity) -> None:
    first = await imagers(read=False)
    second = await imagers(read=False, identity=worker._replace(consumer="c2"))
    await asyncio.gather(first.service.cleaner.claim_store(), second.service.cleaner.claim_store())
    [gone] = await old_objects(first, "gone")
    assert await second.service.cleaner.clean_store(second.service.storage) == 1
    assert not gone.exists()


async def test_a_record_of_a_later_version_is_a_record(imagers: ImageMaker) -> None:
    rig = await imagers(read=False)
    await rig.service.cleaner.claim_store()
    image_id = await rig.create()
    [kept] = await old_objects(rig, image_id)
    await rig.client.hset(rig.images.keys.record(image_id), "status", "archived")
    assert await rig.service.cleaner.clean_store(rig.service.storage) == 0
    assert kept.exists()
