"""Who looks for faces and plates, by what the settings say and what is installed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from common.contracts.images import Blur, Detector
from common.errors import SettingsError
from common.models_dir import FACES_FILE, models_dir

if TYPE_CHECKING:
    from common.image_settings import ImageWorkerSettings

_PACKAGES: Final = ("cv2", "numpy")
_EXTRA: Final = "install sluice[faces]"
_INSTALL: Final = "`sluice model install --only faces`"


@dataclass(frozen=True)
class DetectorChoice:
    """What a process that works on an image must know to look at it."""

    #: CENTERFACE, YUNET or NONE, and the model's file.
    faces: Detector = Detector.NONE
    face_model: str = ""
    #: File of a model that finds plates; '' for nobody.
    plate_model: str = ""
    #: Side of the square that models look at.
    size: int = 640
    blur: Blur = Blur.PIXELATE
    #: Why nobody looks for faces; '' where somebody does, or nobody is wanted.
    why_none: str = ""

    @property
    def name(self) -> str:
        """As records call it: `centerface`, `yunet+plates`, `none`."""
        parts = [] if self.faces is Detector.NONE else [self.faces.value]
        if self.plate_model:
            parts.append(Detector.PLATES.value)
        return "+".join(parts) or Detector.NONE.value

    @property
    def looks(self) -> bool:
        """Whether anybody looks at all."""
        return self.name != Detector.NONE.value


def choose(settings: ImageWorkerSettings) -> DetectorChoice:
    """Raises SettingsError where somebody is named who cannot look."""
    wanted = settings.image_detector
    plates = settings.image_plate_model
    if plates:
        _require_file("IMAGE_PLATE_MODEL", plates)
        _require_packages("IMAGE_PLATE_MODEL")
    faces, model, why = _faces(wanted, settings.image_model_path)
    return DetectorChoice(
        faces, model, plates, settings.image_detect_size, Blur(settings.image_blur), why
    )


def _faces(wanted: str, path: str) -> tuple[Detector, str, str]:
    """Who looks for faces, with which file, and why nobody does."""
    if wanted == Detector.NONE.value:
        return Detector.NONE, "", ""
    if path:
        _require_file("IMAGE_MODEL_PATH", path)
        _require_packages("IMAGE_MODEL_PATH")
        return _kind_of(wanted, path), path, ""
    installed = models_dir() / FACES_FILE
    if wanted == Detector.YUNET.value:
        raise SettingsError("IMAGE_DETECTOR=yunet needs IMAGE_MODEL_PATH, the model's ONNX file")
    if wanted == Detector.CENTERFACE.value:
        if not installed.is_file():
            raise SettingsError(
                f"IMAGE_DETECTOR=centerface, but there is no {installed}; {_INSTALL} brings it, or "
                "set IMAGE_MODEL_PATH"
            )
        _require_packages("IMAGE_DETECTOR=centerface")
        return Detector.CENTERFACE, str(installed), ""
    if not installed.is_file():
        return Detector.NONE, "", f"no model is installed; {_INSTALL} brings one"
    if missing := _missing_package():
        return Detector.NONE, "", f"the package {missing} is missing; {_EXTRA}"
    return Detector.CENTERFACE, str(installed), ""


def _kind_of(wanted: str, path: str) -> Detector:
    if wanted in (Detector.CENTERFACE.value, Detector.YUNET.value):
        return Detector(wanted)
    is_yunet = Detector.YUNET.value in Path(path).name.lower()
    return Detector.YUNET if is_yunet else Detector.CENTERFACE


def _require_file(variable: str, path: str) -> None:
    if not Path(path).is_file():
        raise SettingsError(f"{variable}={path!r}: there is no such file; set it to an ONNX file")


def _require_packages(variable: str) -> None:
    if missing := _missing_package():
        raise SettingsError(f"{variable} needs the package {missing}; {_EXTRA}")


def _missing_package() -> str:
    return next((name for name in _PACKAGES if importlib.util.find_spec(name) is None), "")
