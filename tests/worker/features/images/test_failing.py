"""All failures of an image: the record has the reason, and no files remain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.common.features.images.storage.base import StorageError
from sluice.worker.features.images import processor, service
from sluice.worker.features.images.pixels import process
from tests.support.files import bad_photos
from tests.support.waiting import eventually
from tests.support.worker import image_processes
from tests.support.worker.images import STAGES, ImageMaker, ImageWorker, photo

pytestmark = pytest.mark.fakeredis_only


async def test_bad_images_fail_by_their_stage(imagers: ImageMaker) -> None:
    worker = await imagers(image_max_bytes=100_000)
    large, stored = bytes(100_001), {"keep_file": True}
    for data, about, code, reason, words in (
        (b"", stored, "VALIDATION_FAILED", "file_empty", "file is empty"),
        (b"hello", stored, "VALIDATION_FAILED", "unsupported_format", "unsupported format"),
        (large, stored, "VALIDATION_FAILED", "file_too_large", "file too large"),
        (photo(), {"max_bytes": 1000}, "VALIDATION_FAILED", "file_too_large", "file too large"),
        (bad_photos.truncated("jpeg"), stored, "DECODE_FAILED", "truncated", "truncated"),
        (photo(), {"keep_file": False}, "INTERNAL_ERROR", None, "IMAGE_SPOOL_DIR"),
    ):
        image_id = await worker.upload(data, "image/jpeg", **about)
        record = await worker.failed(image_id, code)
        assert record.detail().get("reason") == reason
        assert words in record.failure.error_message
        error = await worker.error(record.job_id)
        assert (error["kind"], error["attempt"]) == ("image_failed", 1)
        assert error["message"] == f"{code}: {record.failure.error_message}"
        assert worker.stored(image_id) is None
    assert await worker.dead_letters() == []
    assert worker.telling["images"]().failed == 6


async def test_a_crash_costs_one_attempt_and_two_fail(
    imager: ImageWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "process", image_processes.crash_once)
    record = await imager.process()
    assert record.status.value == "processed"
    stages = await imager.stage_events(record.job_id)
    assert stages[:2] == [("validating", 1), ("decoding", 1)]
    assert [stage for stage, attempt in stages if attempt == 2] == STAGES
    assert len(await imager.entries(record.image_id)) == 1
    monkeypatch.setattr(processor, "process", image_processes.crash)
    record = await imager.failed(await imager.upload(), "DECODE_FAILED")
    assert record.detail()["reason"] == "crashed"
    assert (await imager.error(record.job_id))["attempt"] == 2
    monkeypatch.setattr(processor, "process", process)
    assert (await imager.process()).status.value == "processed"


async def test_one_that_is_canceled(imager: ImageWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "process", image_processes.hang)
    image_id = await imager.upload()
    record = await imager.record(image_id)

    async def decoding() -> bool:
        return (await imager.shown(image_id))["stage"] == "decoding"

    await eventually(decoding, 20)
    await imager.cancel(record.job_id)
    assert await imager.settled(record.job_id) == b"canceled"
    await imager.failed(image_id, "CANCELED")
    await eventually(lambda: imager.service.pool.pids == [])


async def test_without_pillow_log_and_error_name_the_extra(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    words = "images need the package Pillow; install sluice[images]"
    for module in (processor, service):
        monkeypatch.setattr(module, "missing_package", lambda formats: words)
    worker = await imagers()
    assert words in caplog.text
    record = await worker.failed(await worker.upload(), "INTERNAL_ERROR")
    assert record.failure.error_message == words


async def test_invalid_arguments_are_refused(imager: ImageWorker) -> None:
    for args in ({}, {"image_id": "../x", "upload_id": "1"}, {"image_id": 1}):
        payload = json.dumps({"tool": "image.process", "args": args}).encode()
        job_id = await imager.run_job(b"error", payload=payload, task="tool")
        assert (await imager.error(job_id))["kind"] == "invalid_payload"


@pytest.mark.parametrize(
    ("process", "code", "words", "attempts"),
    [
        (image_processes.hang, "TIMEOUT", "IMAGE_TIMEOUT_S", 1),
        (image_processes.take_all_memory, "DECODE_FAILED", "", 1),
        (image_processes.raise_unexpectedly, "INTERNAL_ERROR", "an unexpected mistake", 1),
        (image_processes.fill_disk, "INTERNAL_ERROR", "No space left", 5),
    ],
    ids=["time", "memory", "exception", "disk"],
)
async def test_each_failure_of_a_process_has_its_code(
    imagers: ImageMaker, monkeypatch: Any, process: Any, code: str, words: str, attempts: int
) -> None:
    monkeypatch.setattr(processor, "process", process)
    # On a busy machine a process may need more than a second to start.
    worker = await imagers(image_timeout_s=1.0 if code == "TIMEOUT" else 60.0)
    assert worker.worker.max_attempts == 5
    record = await worker.failed(await worker.upload(), code)
    assert words in record.failure.error_message
    assert (await worker.error(record.job_id))["attempt"] == attempts
    if code == "DECODE_FAILED":
        assert record.detail()["reason"] == "out_of_memory"
    if code == "TIMEOUT":
        await eventually(lambda: worker.service.pool.pids == [])


@pytest.mark.parametrize("failures", [2, 99])
async def test_a_store_that_is_unavailable(
    imager: ImageWorker, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    put, faults = imager.service.storage.put, [StorageError("the bucket is away")] * failures

    async def sometimes(*args: Any) -> Any:
        if faults:
            raise faults.pop()
        return await put(*args)

    monkeypatch.setattr(imager.service.storage, "put", sometimes)
    image_id = await imager.upload()
    if failures > 2:
        record = await imager.failed(image_id, "UPLOAD_FAILED")
        assert record.failure.error_message == "the bucket is away"
    else:
        record = await imager.image_ended(image_id)
        assert record.status.value == "processed"
        assert {attempt for _, attempt in await imager.stage_events(record.job_id)} == {1, 2, 3}
        assert len(await imager.entries()) == 1
