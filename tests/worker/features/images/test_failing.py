"""All failures of an image: the record has the reason, and no files remain."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from common.features.images.storage.base import StorageError
from tests.conftest import eventually
from tests.support import bad_photos
from tests.worker.features.images import process_stubs
from tests.worker.features.images.kit import ImageMaker, photo
from worker.features.images import processor

Instead = Callable[[Any], None]


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Replace the processing in child processes."""

    def do(what: Any) -> None:
        monkeypatch.setattr(processor, "process", what)

    return do


@pytest.mark.parametrize(
    ("data", "declared", "code", "reason", "words"),
    [
        (b"", "image/jpeg", "VALIDATION_FAILED", "file_empty", "file is empty"),
        (b"hello", "image/jpeg", "VALIDATION_FAILED", "unsupported_format", "unsupported format"),
        (photo("png"), "image/jpeg", "VALIDATION_FAILED", "type_mismatch", "magic bytes"),
        (bad_photos.truncated("jpeg"), "image/jpeg", "DECODE_FAILED", "truncated", "truncated"),
        (bad_photos.png_bomb_by_header(), "image/png", "DECODE_FAILED",
         "dimensions_exceed_limit", "dimensions exceed limit"),
    ],
    ids=["empty", "text", "mismatch", "truncated", "bomb"],
)  # fmt: skip
async def test_a_bad_image_fails_by_its_stage(
    imagers: ImageMaker, data: bytes, declared: str, code: str, reason: str, words: str
) -> None:
    rig = await imagers()
    image_id = await rig.upload(data, declared)
    record = await rig.failed(image_id, code)
    assert record.detail()["reason"] == reason
    assert words in record.failure.error_message
    error = await rig.error(record.job_id)
    assert error["kind"] == "image_failed"
    assert (error["message"], error["attempt"]) == (f"{code}: {record.failure.error_message}", 1)
    assert await rig.dead_letters() == []
    assert rig.stored(image_id) is None
    assert rig.telling["images"]().failed == 1


async def test_a_file_that_is_too_large(fake_imagers: ImageMaker) -> None:
    rig = await fake_imagers(image_max_bytes=1024)
    record = await rig.failed(await rig.upload(photo()), "VALIDATION_FAILED")
    assert record.failure.error_message == "file too large"


async def test_the_limit_of_the_client_applies_too(fake_imagers: ImageMaker) -> None:
    rig = await fake_imagers()
    record = await rig.failed(await rig.upload(photo(), max_bytes=1000), "VALIDATION_FAILED")
    assert record.failure.error_message == "file too large"


async def test_a_crash_costs_one_attempt(imagers: ImageMaker, instead: Instead) -> None:
    instead(process_stubs.crash_once)
    rig = await imagers()
    record = await rig.process(photo())
    assert record.status.value == "processed"
    stages = await rig.stage_events(record.job_id)
    assert stages[:2] == [("validating", 1), ("decoding", 1)]
    assert [stage for stage, attempt in stages if attempt == 2] == [
        *("validating", "decoding", "processing", "encoding", "uploading")
    ]
    assert len(await rig.entries(record.image_id)) == 1


async def test_an_image_that_crashes_again_has_failed(
    imagers: ImageMaker, instead: Instead
) -> None:
    instead(process_stubs.crash)
    rig = await imagers()
    other = None
    image_id = await rig.upload(photo())
    record = await rig.failed(image_id, "DECODE_FAILED")
    assert record.detail()["reason"] == "crashed"
    assert (await rig.error(record.job_id))["attempt"] == 2
    instead(pixels_process())
    other = await rig.process(photo())
    assert other.status.value == "processed"


def pixels_process() -> Any:
    from worker.features.images.pixels import process

    return process


async def test_one_that_takes_too_long(fake_imagers: ImageMaker, instead: Instead) -> None:
    instead(process_stubs.hang)
    rig = await fake_imagers(image_timeout_s=1.0)
    record = await rig.failed(await rig.upload(photo()), "TIMEOUT")
    assert "IMAGE_TIMEOUT_S" in record.failure.error_message
    await eventually(lambda: rig.service.pool.pids == [])


async def test_one_that_takes_too_much_memory(fake_imagers: ImageMaker, instead: Instead) -> None:
    instead(process_stubs.take_all_memory)
    rig = await fake_imagers()
    record = await rig.failed(await rig.upload(photo()), "DECODE_FAILED")
    assert record.detail()["reason"] == "out_of_memory"


async def test_one_that_is_canceled(imagers: ImageMaker, instead: Instead) -> None:
    instead(process_stubs.hang)
    rig = await imagers()
    image_id = await rig.upload(photo())
    record = await rig.record(image_id)

    async def decoding() -> bool:
        return (await rig.shown(image_id))["stage"] == "decoding"

    await eventually(decoding, 20)
    await rig.cancel(record.job_id)
    assert await rig.settled(record.job_id) == b"canceled"
    await rig.failed(image_id, "CANCELED")
    await eventually(lambda: rig.service.pool.pids == [])


async def test_an_image_whose_file_is_missing_fails(imagers: ImageMaker) -> None:
    rig = await imagers()
    record = await rig.failed(await rig.upload(photo(), keep_file=False), "INTERNAL_ERROR")
    assert "IMAGE_SPOOL_DIR" in record.failure.error_message


async def test_without_pillow_the_error_names_the_extra(
    fake_imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "images need the package Pillow; install sluice[images]"
    monkeypatch.setattr(processor, "missing_package", lambda formats: words)
    rig = await fake_imagers()
    record = await rig.failed(await rig.upload(photo()), "INTERNAL_ERROR")
    assert record.failure.error_message == words


async def test_an_unexpected_exception(fake_imagers: ImageMaker, instead: Instead) -> None:
    instead(process_stubs.raise_unexpectedly)
    rig = await fake_imagers()
    record = await rig.failed(await rig.upload(photo()), "INTERNAL_ERROR")
    assert "a mistake of ours" in record.failure.error_message


async def test_a_full_disk_is_retried_and_then_reported(
    fake_imagers: ImageMaker, instead: Instead
) -> None:
    instead(process_stubs.fill_disk)
    rig = await fake_imagers()
    record = await rig.failed(await rig.upload(photo()), "INTERNAL_ERROR")
    assert "No space left" in record.failure.error_message
    assert (await rig.error(record.job_id))["attempt"] == rig.worker.max_attempts


async def test_a_store_that_is_unavailable_for_a_while(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await imagers()
    put, faults = rig.service.storage.put, [StorageError("the bucket cannot be reached")] * 2

    async def sometimes(*args: Any) -> Any:
        if faults:
            raise faults.pop()
        return await put(*args)

    monkeypatch.setattr(rig.service.storage, "put", sometimes)
    record = await rig.process(photo())
    assert record.status.value == "processed"
    assert {attempt for _, attempt in await rig.stage_events(record.job_id)} == {1, 2, 3}
    assert len(await rig.entries()) == 1


async def test_a_store_that_stays_unavailable(
    fake_imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await fake_imagers()

    async def never(*args: Any) -> Any:
        raise StorageError("the bucket cannot be reached")

    monkeypatch.setattr(rig.service.storage, "put", never)
    record = await rig.failed(await rig.upload(photo()), "UPLOAD_FAILED")
    assert record.failure.error_message == "the bucket cannot be reached"


@pytest.mark.parametrize("args", [{}, {"image_id": "../x", "upload_id": "1"}, {"image_id": 1}])
async def test_invalid_arguments_are_refused(
    fake_imagers: ImageMaker, args: dict[str, Any]
) -> None:
    rig = await fake_imagers()
    payload = json.dumps({"tool": "image.process", "args": args}).encode()
    [job_id] = await rig.post(payload=payload, task="tool")
    assert await rig.settled(job_id) == b"error"
    assert (await rig.error(job_id))["kind"] == "invalid_payload"
