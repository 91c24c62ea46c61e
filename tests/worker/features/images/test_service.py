"""Start-up of a worker with images, its heartbeat, an echo worker, and slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.common import codec
from sluice.common.contracts.images import Detect
from sluice.common.errors import SettingsError
from sluice.worker.features.images import job_failure, processor
from sluice.worker.features.images.pixels import formats
from sluice.worker.handlers import echo
from sluice.worker.queue.messages import Message
from sluice.worker.registry import Registry
from tests.support.files.detection import write_net
from tests.support.waiting import eventually
from tests.support.worker import image_processes
from tests.support.worker.images import ImageMaker, ImageWorker, image_settings, registry_of


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("setting", ["image_model_path", "image_plate_model"])
async def test_a_configured_but_invalid_model_stops_the_worker(
    imagers: ImageMaker, tmp_path: Path, setting: str
) -> None:
    model = tmp_path / "model.onnx"
    model.write_text("not a model")
    worker = await imagers(opened=False, image_detector="auto", **{setting: str(model)})
    with pytest.raises(SettingsError, match=r"model\.onnx"):
        await worker.open(read=False)


@pytest.mark.fakeredis_only
async def test_detections_are_recorded_unless_unwanted(imagers: ImageMaker, tmp_path: Path) -> None:
    rows = [8, 8, 24, 16, 0.9, 0]
    net = write_net(tmp_path / "plates.onnx", 64, {"finds": ((1, 1, 6), rows)})
    worker = await imagers(image_plate_model=str(net), image_detect_size=64)
    details = (await worker.process()).detail()
    assert (details["detector"], details["blur"]) == ("plates", "pixelate")
    assert worker.telling["images"]().detector == "plates"
    [found] = details["detections"]
    assert (found["kind"], found["x"], found["y"], found["width"]) == ("plate", 20, 20, 40)
    assert (await worker.process(detect=Detect.NONE)).detail()["detector"] == "none"


@pytest.mark.fakeredis_only
async def test_the_heartbeat_names_the_formats_that_work(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"heic": "heic needs the package pillow-heif"}
    monkeypatch.setattr(formats, "missing_package_for", lambda name: missing.get(name, ""))
    worker = await imagers(image_formats="png,heic,jpeg")
    assert worker.telling["images"]().formats == ["jpeg", "png"]


@pytest.mark.fakeredis_only
async def test_an_echo_worker_fails_images_at_once(imagers: ImageMaker, tmp_path: Path) -> None:
    registry = Registry()
    echo.register(registry)
    job_failure.register(registry, image_settings(tmp_path))
    worker = await imagers(registry=registry)
    image_id = await worker.upload()
    record = await worker.failed(image_id, "INTERNAL_ERROR")
    for words in ("echo worker", "python -m sluice.worker"):
        assert words in record.failure.error_message
    assert (await worker.error(record.job_id))["kind"] == "image_failed"
    await worker.run_job(task="chat")


def test_invalid_settings_stop_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    with pytest.raises(SettingsError, match="IMAGE_FORMATS"):
        registry_of(image_settings(tmp_path, image_formats="jpeg,bmp"))
    with pytest.raises(SettingsError, match="sluice model install --only faces"):
        registry_of(image_settings(tmp_path, image_detector="centerface"))


@pytest.mark.fakeredis_only
@pytest.mark.parametrize(
    ("installed", "words"),
    [(True, "centerface.onnx"), (False, "sluice model install --only faces")],
    ids=["invalid", "missing"],
)
async def test_an_unusable_installed_model_is_reported(
    imagers: ImageMaker, tmp_path: Path, monkeypatch: Any, installed: bool, words: str
) -> None:
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    if installed:
        (tmp_path / "centerface.onnx").write_text("not a model")
    worker = await imagers(image_detector="auto")
    details = (await worker.process()).detail()
    assert (details["detector"], details["detections"]) == ("none", [])
    reading = worker.telling["images"]()
    assert reading.detector == "none"
    assert words in reading.detector_why


@pytest.mark.parametrize(
    ("task", "payload", "key"),
    [
        ("chat", b'{"tool":"image.process"}', "chat"),
        ("tool", b'{"tool":"image.process","args":{}}', "image.process"),
        ("tool", b'{"args":{},"tool":"image.process"}', "image.process"),
        ("tool", b'{"tool":"calculator","args":{"text":"image.process"}}', "tool"),
        ("tool", b"image.process", "tool"),
        ("tool", b"", "tool"),
    ],
)
def test_jobs_are_counted_by_task_or_internal_tool(
    monkeypatch: pytest.MonkeyPatch, task: str, payload: bytes, key: str
) -> None:
    fields = {b"job_id": b"j", b"task": task.encode(), b"payload": payload}
    message = Message.read("1-0", fields)
    monkeypatch.delattr(codec, "parse_payload")  # parsed once per message
    assert message.limit_key == message.without_payload().limit_key == key


async def waiting(worker: ImageWorker, count: int) -> None:
    """Wait until this many images wait for a slot."""

    async def enough() -> bool:
        return (await worker.consumer.wait_queue._wait_queues.count()).get("image.process") == count

    await eventually(enough)


async def test_many_images_leave_slots_for_other_jobs(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(processor, "process", image_processes.wait_for_go)
    registry = registry_of(image_settings(tmp_path))
    echo.register(registry)
    worker = await imagers(registry=registry, options={"max_inflight": 6})
    ids = [await worker.upload() for _ in range(12)]
    await waiting(worker, 8)
    assert worker.consumer.slots.busy == 4  # two with a process, two in addition
    reading = worker.telling["images"]()
    assert (reading.places, reading.busy) == (2, 2)
    await worker.run_job(task="chat")
    # A waiting job can be canceled and does not run.
    last = await worker.record(ids[-1])
    await worker.cancel(last.job_id)
    worker.go()
    for image_id in ids[:-1]:
        assert (await worker.image_ended(image_id)).status.value == "processed"
    await worker.service.reconciler.run_once()
    await worker.failed(ids[-1], "CANCELED")
    assert await worker.pending() == 0


@pytest.mark.fakeredis_only
@pytest.mark.parametrize("limits", ["task_limits", "task_limits_global"])
async def test_a_limit_of_the_task_tool_counts_for_images_too(
    imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, limits: str
) -> None:
    monkeypatch.setattr(processor, "process", image_processes.wait_for_go)
    worker = await imagers(options={"max_inflight": 16, limits: {"tool": 1}})
    ids = [await worker.upload() for _ in range(3)]
    await waiting(worker, 2)
    if limits == "task_limits":
        assert worker.consumer.slots.busy == 1
    worker.go()
    for image_id in ids:
        assert (await worker.image_ended(image_id)).status.value == "processed"
