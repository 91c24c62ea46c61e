"""Chooses the detectors of faces and plates by the settings and what is installed."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.common.aio import cancel
from sluice.common.contracts.images import Blur, Detector
from sluice.common.errors import SettingsError
from sluice.common.settings.models_dir import FACES_FILE, models_dir
from sluice.worker.execution.process_pool.pool import ProcessPool

if TYPE_CHECKING:
    from sluice.common.settings.images import ImageWorkerSettings

_PACKAGES: Final = ("cv2", "numpy")
_EXTRA_HINT: Final = "install sluice[faces]"
_INSTALL_HINT: Final = "`sluice model install --only faces`"


@dataclass(frozen=True)
class DetectorChoice:
    """Detector configuration, passed to the process that handles an image."""

    #: CENTERFACE, YUNET or NONE, and the file of the model.
    faces: Detector = Detector.NONE
    face_model: str = ""
    #: File of the plate model; '' if plates are not detected.
    plate_model: str = ""
    #: Side of the square that the models get.
    size: int = 640
    blur: Blur = Blur.PIXELATE
    #: Why face detection is unavailable; '' if it is available or disabled.
    unavailable_reason: str = ""

    @property
    def name(self) -> str:
        """Name in records: `centerface`, `yunet+plates`, `none`."""
        parts = [] if self.faces is Detector.NONE else [self.faces.value]
        if self.plate_model:
            parts.append(Detector.PLATES.value)
        return "+".join(parts) or Detector.NONE.value

    @property
    def enabled(self) -> bool:
        return self.name != Detector.NONE.value


def choose_detector(settings: ImageWorkerSettings) -> DetectorChoice:
    """Raises SettingsError if a configured detector is unavailable."""
    configured = settings.image_detector
    plates = settings.image_plate_model
    if plates:
        _require_file("IMAGE_PLATE_MODEL", plates)
        _require_packages("IMAGE_PLATE_MODEL")
    faces, model, why = _choose_face_detector(configured, settings.image_model_path)
    return DetectorChoice(
        faces, model, plates, settings.image_detect_size, Blur(settings.image_blur), why
    )


def _choose_face_detector(configured: str, path: str) -> tuple[Detector, str, str]:
    """Face detector, file of its model, and why there is none."""
    if configured == Detector.NONE.value:
        return Detector.NONE, "", ""
    if path:
        _require_file("IMAGE_MODEL_PATH", path)
        _require_packages("IMAGE_MODEL_PATH")
        return _face_detector_kind(configured, path), path, ""
    installed = models_dir() / FACES_FILE
    if configured == Detector.YUNET.value:
        raise SettingsError("IMAGE_DETECTOR=yunet needs IMAGE_MODEL_PATH, the model's ONNX file")
    if configured == Detector.CENTERFACE.value:
        if not installed.is_file():
            raise SettingsError(
                f"IMAGE_DETECTOR=centerface, but there is no {installed}; "
                f"run {_INSTALL_HINT} or set IMAGE_MODEL_PATH"
            )
        _require_packages("IMAGE_DETECTOR=centerface")
        return Detector.CENTERFACE, str(installed), ""
    if not installed.is_file():
        return Detector.NONE, "", f"no model is installed; run {_INSTALL_HINT}"
    if missing := _missing_package():
        return Detector.NONE, "", f"the package {missing} is missing; {_EXTRA_HINT}"
    return Detector.CENTERFACE, str(installed), ""


def _face_detector_kind(configured: str, path: str) -> Detector:
    if configured in (Detector.CENTERFACE.value, Detector.YUNET.value):
        return Detector(configured)
    is_yunet = Detector.YUNET.value in Path(path).name.lower()
    return Detector.YUNET if is_yunet else Detector.CENTERFACE


def _require_file(variable: str, path: str) -> None:
    if not Path(path).is_file():
        raise SettingsError(f"{variable}={path!r}: there is no such file; set it to an ONNX file")


def _require_packages(variable: str) -> None:
    if missing := _missing_package():
        raise SettingsError(f"{variable} needs the package {missing}; {_EXTRA_HINT}")


def _missing_package() -> str:
    return next((name for name in _PACKAGES if importlib.util.find_spec(name) is None), "")


log = logging.getLogger(__name__)

#: Loading a model and running it once takes about a second.
SELF_TEST_TIMEOUT_S: Final = 60.0


class DetectorSelfTest:
    """Tries the models once. Fails start-up only if the detector was configured explicitly."""

    def __init__(
        self, pool: ProcessPool, choice: DetectorChoice, settings: ImageWorkerSettings
    ) -> None:
        self._pool = pool
        #: The configured choice; after the self-test, the detectors that work.
        self.choice = choice
        self._is_explicit = bool(
            settings.image_detector not in ("auto", Detector.NONE.value)
            or settings.image_model_path
            or settings.image_plate_model
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the test.

        Raises SettingsError if an explicitly configured detector does not work.
        """
        if not self.choice.enabled:
            return
        self._task = asyncio.create_task(self._run())
        if self._is_explicit:
            await self._task
            if self.choice.unavailable_reason:
                raise SettingsError(
                    "the configured face or plate detector does not work: "
                    f"{self.choice.unavailable_reason}; correct IMAGE_DETECTOR, IMAGE_MODEL_PATH "
                    "or IMAGE_PLATE_MODEL"
                )

    async def outcome(self) -> DetectorChoice:
        """The detectors to use, once the test is done."""
        if self._task is not None:
            await asyncio.shield(self._task)
        return self.choice

    async def close(self) -> None:
        if self._task is not None:
            await cancel(self._task)

    async def _run(self) -> None:
        try:
            why = await self._pool.run(_self_test, self.choice, timeout_s=SELF_TEST_TIMEOUT_S)
        except Exception as error:  # a crash, too much memory, a broken package
            why = f"{type(error).__name__}: {error}"
        if why:
            log.error("faces and plates are not detected in images: %s", why)
            self.choice = dataclasses.replace(
                self.choice,
                faces=Detector.NONE,
                face_model="",
                plate_model="",
                unavailable_reason=why[:1000],
            )


def _self_test(choice: DetectorChoice) -> str:
    from sluice.worker.features.images.detect.blur import self_test

    return self_test(choice)
