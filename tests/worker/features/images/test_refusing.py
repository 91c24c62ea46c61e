"""An echo worker rejects images."""

from __future__ import annotations

from pathlib import Path

from tests.worker.features.images.kit import ImageMaker, image_settings, photo
from worker.features.images import job_failure
from worker.handlers import echo
from worker.registry import Registry


async def test_an_echo_worker_fails_images_at_once(imagers: ImageMaker, tmp_path: Path) -> None:
    registry = Registry()
    echo.register(registry)
    job_failure.register(registry, image_settings(tmp_path))
    rig = await imagers(registry=registry)
    image_id = await rig.upload(photo())
    record = await rig.failed(image_id, "INTERNAL_ERROR")
    assert "echo worker" in record.failure.error_message
    assert "python -m worker" in record.failure.error_message
    assert (await rig.error(record.job_id))["kind"] == "image_failed"
    [chat] = await rig.post(task="chat")
    assert await rig.settled(chat) == b"done"
