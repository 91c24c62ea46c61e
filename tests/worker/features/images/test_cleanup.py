"""Clean-up removes unneeded files and keeps all others."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from sluice.common.features.images.storage.files import part_path
from sluice.worker.features.images.cleanup import STORE_ID_FILE
from tests.support.worker.images import ImageMaker, ImageWorker

pytestmark = pytest.mark.fakeredis_only

UPLOAD = "0123456789abcdef"
MINUTES, HOURS, DAYS = 60, 3600, 24 * 3600
#: State of an image, a file of it in the spool, its age in seconds, and whether it is kept.
SPOOL = (
    ("waiting", "upload", 10 * HOURS, True),
    ("waiting", "former upload", 2 * MINUTES, False),
    ("failed", "upload", 30, True),
    ("failed", "upload", 2 * MINUTES, False),
    ("deleted", "upload", 20 * HOURS, True),  # this may be the wrong Redis
    ("deleted", "upload", 2 * DAYS, False),
    ("not submitted", "upload", 30 * MINUTES, True),
    ("not submitted", "upload", 2 * HOURS, False),
    ("not submitted", "part", 30 * MINUTES, True),
    ("not submitted", "part", 2 * HOURS, False),
    ("waiting", "output", 2 * HOURS, False),
)


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


async def spool_file(worker: ImageWorker, state: str, kind: str) -> Path:
    """A file of an image in this state."""
    image_id, upload_id = await worker.create(), UPLOAD
    if state == "not submitted":
        await worker.images.claim(image_id, UPLOAD, 60_000)
    else:
        await worker.upload(image_id=image_id)
        upload_id = (await worker.record(image_id)).upload_id
    if state == "failed":
        await worker.client.hset(worker.images.keys.record(image_id), "status", "failed")
    elif state == "deleted":
        await worker.images.delete(image_id)
    path = worker.spool.path(image_id, UPLOAD if kind == "former upload" else upload_id)
    if kind in ("part", "output"):
        path = part_path(path, "" if kind == "part" else "1")
    path.touch()
    return path


async def test_the_spool_keeps_only_what_may_be_needed(idle: ImageWorker) -> None:
    idle.spool.check()  # creates the directory
    stranger = idle.spool.directory / "README"
    stranger.touch()
    kept, unneeded = [aged(stranger, 10 * DAYS)], []
    for state, kind, age_s, is_kept in SPOOL:
        path = aged(await spool_file(idle, state, kind), age_s)
        (kept if is_kept else unneeded).append(path)
    assert await idle.service.cleaner.clean_spool() == len(unneeded)
    assert [path for path in unneeded if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []


async def test_objects_without_a_record_go_after_a_day(idle: ImageWorker) -> None:
    cleaner, directory = idle.service.cleaner, idle.home / "store"
    await cleaner.claim_store()
    known = await idle.create()
    for key in (f"images/{known}", "images/gone", "images/fresh", "thumbs/gone"):
        await idle.service.storage.put(f"{key}.webp", b"x", "image/webp")
    (directory / "images" / ".gone.webp.1234.part").write_bytes(b"half")
    for path in directory.rglob("*"):
        if path.is_file() and "fresh" not in path.name:
            aged(path, 2 * DAYS)
    assert await cleaner.run_once() == 2
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*.*")}
    here = {f"images/{known}.webp", "images/fresh.webp", "thumbs/gone.webp"}
    assert left == {STORE_ID_FILE, *here}
    assert await cleaner.run_once() == 0


async def old_objects(worker: ImageWorker, *image_ids: str) -> list[Path]:
    """Objects that are two days old."""
    for image_id in image_ids:
        await worker.service.storage.put(f"images/{image_id}.webp", b"x", "image/webp")
    images = worker.home / "store" / "images"
    return [aged(images / f"{image_id}.webp", 2 * DAYS) for image_id in image_ids]


async def test_an_emptied_redis_removes_nothing(idle: ImageWorker, caplog: Any) -> None:
    cleaner, storage = idle.service.cleaner, idle.service.storage
    await cleaner.claim_store()
    store_id = (idle.home / "store" / STORE_ID_FILE).read_text().strip()
    [kept] = await old_objects(idle, await idle.create())
    await idle.client.flushall()
    # The same after new images were created.
    await old_objects(idle, await idle.create())
    for _ in range(2):
        await cleaner.claim_store()
        assert await cleaner.clean_store(storage) == 0
    assert kept.exists()
    assert f"redis-cli SADD {idle.images.keys.stores} {store_id}" in caplog.text
    # An operator confirms that it was intended.
    await idle.client.sadd(idle.images.keys.stores, store_id)
    assert await cleaner.clean_store(storage) == 1
    assert not kept.exists()


async def test_a_directory_without_an_id_removes_nothing(idle: ImageWorker, caplog: Any) -> None:
    """It may belong to another Redis, unless this one has a record of every image."""
    cleaner, storage = idle.service.cleaner, idle.service.storage
    known, strange = await old_objects(idle, await idle.create(), "somebodys")
    await cleaner.claim_store()
    assert await cleaner.clean_store(storage) == 0
    assert strange.exists()
    assert not (idle.home / "store" / STORE_ID_FILE).exists()
    assert "no record of 1 image" in caplog.text
    strange.unlink()
    await cleaner.claim_store()
    [gone] = await old_objects(idle, "gone")
    assert await cleaner.clean_store(storage) == 1
    assert (known.exists(), gone.exists()) == (True, False)


async def test_two_workers_may_begin_at_once(idle: ImageWorker, imagers: ImageMaker) -> None:
    second = (await imagers(read=False, consumer="c2")).service
    await asyncio.gather(idle.service.cleaner.claim_store(), second.cleaner.claim_store())
    [gone] = await old_objects(idle, "gone")
    assert await second.cleaner.clean_store(second.storage) == 1
    assert not gone.exists()


async def test_a_record_of_a_later_version_is_a_record(idle: ImageWorker) -> None:
    await idle.service.cleaner.claim_store()
    image_id = await idle.create()
    [kept] = await old_objects(idle, image_id)
    await idle.client.hset(idle.images.keys.record(image_id), "status", "archived")
    assert await idle.service.cleaner.clean_store(idle.service.storage) == 0
    assert kept.exists()
