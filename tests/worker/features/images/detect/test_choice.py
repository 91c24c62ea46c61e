"""The choice of detectors by the settings and what is installed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from common.contracts.images import Detector
from common.errors import SettingsError
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from worker.features.images.detect import choice
from worker.features.images.detect.choice import DetectorChoice, choose_detector


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of models."""
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    return tmp_path


def chosen(**given: Any) -> DetectorChoice:
    return choose_detector(load_settings(WorkerSettings, **given))


def test_auto_without_a_model_gives_the_reason(models: Path) -> None:
    found = chosen()
    assert (found.name, found.enabled) == ("none", False)
    assert "sluice model install --only faces" in found.unavailable_reason


def test_auto_uses_the_installed_model(models: Path) -> None:
    (models / "centerface.onnx").touch()
    found = chosen(image_blur="gaussian", image_detect_size=320)
    assert found.name == "centerface"
    assert found.face_model == str(models / "centerface.onnx")
    assert (found.size, found.blur.value, found.unavailable_reason) == (320, "gaussian", "")
    assert pickle.loads(pickle.dumps(found)) == found


def test_auto_without_the_package_names_the_extra(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "centerface.onnx").touch()
    monkeypatch.setattr(choice, "_PACKAGES", ("no_such_package",))
    assert "sluice[faces]" in chosen().unavailable_reason
    for given in (
        {"image_detector": "centerface"},
        {"image_model_path": str(models / "centerface.onnx")},
        {"image_plate_model": str(models / "centerface.onnx")},
    ):
        with pytest.raises(SettingsError, match=r"sluice\[faces\]"):
            chosen(**given)


def test_detection_can_be_disabled(models: Path) -> None:
    (models / "centerface.onnx").touch()
    found = chosen(image_detector="none")
    assert (found.name, found.unavailable_reason) == ("none", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image_detector": "centerface"}, "sluice model install --only faces"),
        ({"image_detector": "yunet"}, "IMAGE_MODEL_PATH"),
        ({"image_model_path": "/no/such.onnx"}, "IMAGE_MODEL_PATH='/no/such.onnx'"),
        ({"image_plate_model": "/no/such.onnx"}, "IMAGE_PLATE_MODEL='/no/such.onnx'"),
    ],
)
def test_a_configured_detector_must_be_available(
    models: Path, given: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        chosen(**given)


def test_a_model_file_of_the_operator(models: Path) -> None:
    mine, yunet = models / "mine.onnx", models / "face_detection_YuNet_2023mar.onnx"
    mine.touch()
    yunet.touch()
    assert chosen(image_model_path=str(mine)).faces is Detector.CENTERFACE
    assert chosen(image_model_path=str(yunet)).faces is Detector.YUNET
    assert chosen(image_model_path=str(mine), image_detector="yunet").faces is Detector.YUNET
    both = chosen(image_model_path=str(mine), image_plate_model=str(yunet))
    assert both.name == "centerface+plates"
