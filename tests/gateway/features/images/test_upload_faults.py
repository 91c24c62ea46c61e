"""Uploads while Redis or the disk fails, or another upload takes over."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sluice.common.errors import StoreUnavailable
from sluice.common.features.images.storage.spool import SpoolFile
from sluice.gateway.features.images.upload import sink
from sluice.gateway.features.images.upload import upload as uploading
from tests.gateway.features.images.conftest import MakeImages
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import check_problem, settle
from tests.support.gateway.images import BYTES, IMAGES, KEYS, Images
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only


away = raising(StoreUnavailable("no answer"))


async def test_redis_failing_before_the_job_exists_undoes_the_upload(
    images: Images, monkeypatch: Any
) -> None:
    image_id = await images.create()
    with monkeypatch.context() as patched:
        patched.setattr(images.services.store, "claim", away)
        upload = images.begin(image_id, [b"x"] * 3, {"expect": "100-continue"})
        check_problem(await upload.answer(), 503, "store_unavailable")
        assert len(upload._chunks) == 3, "no byte was read"
    await images.check_untouched(image_id)
    with monkeypatch.context() as patched:
        patched.setattr(images.services.store, "submit", away)
        check_problem(await images.upload(image_id), 503, "store_unavailable")

        async def released() -> bool:
            return not await images.redis.exists(KEYS.upload(image_id)) and not images.spooled()

        await eventually(released)
    await images.check_free(image_id)


async def test_a_lost_reply_keeps_the_file_of_the_created_job(
    images: Images, monkeypatch: Any
) -> None:
    """The reply is lost, but the job exists and needs the file."""
    image_id = await images.create()
    submit = images.services.store.submit

    async def lost(*args: Any) -> Any:
        await submit(*args)
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(images.services.store, "submit", lost)
        check_problem(await images.upload(image_id), 503, "store_unavailable")
    await eventually(lambda: not uploading._cleanup_tasks)
    assert [file.read_bytes() for file in images.spooled()] == [BYTES]
    assert await images.jobs() == 1
    assert (await images.view(image_id))["status"] == "processing"
    check_problem(await images.upload(image_id), 409, "already_uploaded")


async def test_the_file_is_kept_while_the_outcome_is_unknown(
    images: Images, monkeypatch: Any
) -> None:
    """It is unknown whether the job exists: the file stays, and the claim expires."""
    image_id = await images.create()
    with monkeypatch.context() as patched:
        patched.setattr(images.services.store, "submit", away)
        patched.setattr(images.services.store, "release", away)
        check_problem(await images.upload(image_id), 503, "store_unavailable")
        await eventually(lambda: not uploading._cleanup_tasks)
    assert len(images.spooled()) == 1
    check_problem(await images.upload(image_id), 409, "already_uploaded")
    await images.redis.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
    assert (await images.upload(image_id)).status == 202


async def test_a_full_disk_gets_503_and_leaves_nothing(
    make_images: MakeImages, monkeypatch: Any, tmp_path: Path
) -> None:
    images = make_images()
    for call in ("write", "commit"):
        image_id = await images.create()
        with monkeypatch.context() as patched:
            full = Mock(side_effect=OSError(28, "No space left on device"))
            patched.setattr(SpoolFile, call, full)
            check_problem(await images.upload(image_id), 503, "spool_unavailable")
        await images.check_untouched(image_id)
    await images.check_free(image_id)
    (tmp_path / "file").write_bytes(b"")
    images = make_images(image_spool_dir=str(tmp_path / "file" / "spool"))
    image_id = await images.create()
    check_problem(await images.upload(image_id), 503, "spool_unavailable")
    assert not await images.redis.exists(KEYS.upload(image_id))


class SlowDisk:
    """Writes of the spool wait until the test permits them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writing, self.may_write = threading.Event(), threading.Event()
        write = SpoolFile.write

        def slowly(file: SpoolFile, data: bytes) -> None:
            self.writing.set()
            assert self.may_write.wait(20)
            write(file, data)

        monkeypatch.setattr(sink, "BLOCK_BYTES", 1000)
        monkeypatch.setattr(SpoolFile, "write", slowly)


async def test_a_slow_disk_delays_only_its_own_client(images: Images, monkeypatch: Any) -> None:
    """At most two blocks are in memory, and the event loop is not blocked."""
    disk = SlowDisk(monkeypatch)
    image_id = await images.create()
    upload = images.begin(image_id, [b"x" * 1000] * 50)
    await eventually(lambda: len(upload._chunks) == 48)
    assert (await images.client.get("/healthz")).status == 200
    await settle()
    assert len(upload._chunks) == 48
    disk.may_write.set()
    assert (await upload.answer()).status == 202
    assert images.spooled()[0].stat().st_size == 50_000


async def test_a_canceled_upload_waits_for_its_write(images: Images, monkeypatch: Any) -> None:
    """The file is closed when the thread is done with it, and not before."""
    disk = SlowDisk(monkeypatch)
    image_id = await images.create()
    upload = images.begin_unfinished(image_id, [b"x" * 1000])
    await eventually(disk.writing.is_set)
    upload.task.cancel()
    await asyncio.sleep(0.01)
    assert not upload.task.done()
    disk.may_write.set()
    check_problem(await upload.answer(), 503)
    await images.check_free(image_id)


async def test_a_timeout_during_a_write_is_reported_after_it(
    make_images: MakeImages, monkeypatch: Any
) -> None:
    """The timeout passes during a write; it is reported when the write has ended."""
    monkeypatch.setattr(sink, "BLOCK_BYTES", 1000)
    images = make_images(image_upload_timeout_s=0.05)
    write = SpoolFile.write

    def slowly(self: SpoolFile, data: bytes) -> None:
        time.sleep(0.1)
        write(self, data)

    monkeypatch.setattr(SpoolFile, "write", slowly)
    image_id = await images.create()
    upload = images.begin_unfinished(image_id)
    await asyncio.sleep(0)  # the upload waits for its first chunk, and its timeout starts
    await eventually(lambda: images.redis.exists(KEYS.upload(image_id)))
    await asyncio.sleep(0.01)
    for _ in range(4):
        upload.send(b"x" * 1000)
    upload.finish()
    check_problem(await upload.answer(), 408, "request_timeout")
    monkeypatch.undo()
    await images.check_free(image_id)


async def test_a_long_upload_renews_its_claim(images: Images, monkeypatch: Any) -> None:
    monkeypatch.setattr(uploading, "CLAIM_RENEW_EVERY_S", 0.0)
    image_id = await images.create()
    upload = images.begin_unfinished(image_id, [])

    async def renewed() -> bool:
        deadline_ms = await images.redis.hget(KEYS.record(image_id), "upload_deadline_ms")
        return int(deadline_ms or 0) > 1

    await eventually(renewed)
    await images.redis.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
    upload.send(b"x")
    await eventually(renewed)
    check_problem(await images.upload(image_id), 409, "already_uploaded")
    upload.hang_up_soon()
    check_problem(await upload.answer(), 400, "incomplete_body")
    await images.check_free(image_id)


@pytest.mark.parametrize("held", [True, False])
async def test_a_stalled_upload_loses_its_claim(
    images: Images, monkeypatch: Any, held: bool
) -> None:
    """Another upload has the claim; the stalled one has no more effect."""
    image_id = await images.create()
    slow = images.begin_unfinished(image_id, [b"slow"])
    await eventually(lambda: not slow._chunks)
    await images.redis.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
    fast = await images.upload(image_id)
    assert fast.status == 202
    if held:  # otherwise it is detected only at the end of the body
        monkeypatch.setattr(uploading, "CLAIM_RENEW_EVERY_S", 0.0)
    slow.send(b"more")
    slow.finish()
    check_problem(await slow.answer(), 409, "upload_lost")
    [file] = images.spooled()
    assert file.read_bytes() == BYTES
    assert await images.jobs() == 1
    assert (await images.view(image_id))["job_id"] == fast.json()["job_id"]


async def test_outcomes_and_bytes_are_counted(images: Images) -> None:
    image_id = await images.uploaded()
    await images.upload(image_id)
    await images.upload(await images.create(), b"", {"content-length": "0"})
    await images.client.send("PUT", f"{IMAGES}/x/upload")
    numbers = images.services.metrics
    counted = {outcome.value: count for outcome, count in numbers.uploads.items()}
    assert counted == {"accepted": 1, "conflict": 1, "unfit": 1, "unknown": 1}
    assert numbers.received_bytes == len(BYTES)
