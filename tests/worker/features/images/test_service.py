"""Start-up of a worker with images, and its heartbeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import SettingsError
from tests.worker.features.images.detect.onnx_files import write_net
from tests.worker.features.images.kit import ImageMaker, image_settings, photo, registry_of
from worker.features.images import service as image_service


def test_unknown_formats_stop_the_worker(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="IMAGE_FORMATS"):
        registry_of(image_settings(tmp_path, image_formats="jpeg,bmp"))


def test_a_configured_but_missing_detector_stops_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    with pytest.raises(SettingsError, match="sluice model install --only faces"):
        registry_of(image_settings(tmp_path, image_detector="centerface"))


@pytest.mark.parametrize("setting", ["image_model_path", "image_plate_model"])
async def test_a_configured_but_invalid_model_stops_the_worker(
    fake_imagers: ImageMaker, tmp_path: Path, setting: str
) -> None:
    model = tmp_path / "model.onnx"
    model.write_text("not a model")
    rig = await fake_imagers(opened=False, image_detector="auto", **{setting: str(model)})
    with pytest.raises(SettingsError, match=r"model\.onnx"):
        await rig.open(read=False)


async def test_an_invalid_installed_model_is_reported(
    fake_imagers: ImageMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    (tmp_path / "centerface.onnx").write_text("not a model")
    rig = await fake_imagers(image_detector="auto")
    record = await rig.process(photo())
    assert record.detail()["detector"] == "none"
    reading = rig.telling["images"]()
    assert reading.detector == "none"
    assert "centerface.onnx" in reading.detector_why


async def test_a_missing_model_is_reported(
    fake_imagers: ImageMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    rig = await fake_imagers(image_detector="auto")
    reading = rig.telling["images"]()
    assert reading.detector == "none"
    assert "sluice model install --only faces" in reading.detector_why
    record = await rig.process(photo())
    assert record.detail()["detector"] == "none"
    assert record.detail()["detections"] == []


async def test_a_model_for_plates(fake_imagers: ImageMaker, tmp_path: Path) -> None:
    rows = [8, 8, 24, 16, 0.9, 0]
    net = write_net(tmp_path / "plates.onnx", 64, {"finds": ((1, 1, 6), rows)})
    rig = await fake_imagers(image_plate_model=str(net), image_detect_size=64)
    record = await rig.process(photo())
    details = record.detail()
    assert (details["detector"], details["blur"]) == ("plates", "pixelate")
    [found] = details["detections"]
    assert (found["kind"], found["x"], found["y"], found["width"]) == ("plate", 80, 80, 160)


async def test_without_pillow_the_worker_starts_with_a_warning(
    fake_imagers: ImageMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(image_service, "missing_package", lambda formats: "install sluice[images]")
    await fake_imagers(read=False)
    assert "install sluice[images]" in caplog.text
