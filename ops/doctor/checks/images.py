"""Checks of images: spool, store, packages and face detector."""

from __future__ import annotations

import asyncio
import os
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sluice.common.contracts.images import Detector
from sluice.common.errors import SluiceError
from sluice.common.features.images.storage.factory import create_storage
from sluice.common.features.images.storage.spool import Spool, spool_dir, store_dir
from sluice.common.text import plural
from sluice.ops.doctor.checks.model import models_directory
from sluice.ops.doctor.finding import Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import Machine
from sluice.ops.model.catalogue import FACES

#: The directory for images, created by the installer.
INSTALLED_DIRECTORY: Final = "/var/lib/sluice-images"
#: Permissions for the group shared by gateway and workers.
_GROUP_BITS: Final = stat.S_IRWXG
_INSTALL: Final = "sluice model install --only faces"


@check(
    "images.spool",
    "the spool directory, shared by gateways and workers, is writable",
    "`sudo chgrp sluice DIR && sudo chmod 2770 DIR`, or set IMAGE_SPOOL_DIR",
)
def spool(machine: Machine) -> Finding:
    """A gateway that cannot write to the spool refuses every upload."""
    settings = machine.worker_settings
    directory = _directory(machine, settings.image_spool_dir, "spool")
    directory = directory or spool_dir(settings, settings.sluice_data_dir).absolute()
    problem = _write_problem(machine, directory, "IMAGE_SPOOL_DIR")
    if problem is not None:
        return problem
    waiting = sum(1 for entry in Spool(directory).entries() if not entry.is_part)
    return ok(f"{directory}, {plural(waiting, 'upload')} waiting")


@check(
    "images.store",
    "processed images can be stored: the directory is writable, or the bucket accepts objects",
    "`sudo chgrp sluice DIR && sudo chmod 2770 DIR`, or correct IMAGE_STORE and IMAGE_S3_*",
    timeout_s=30.0,
)
def store(machine: Machine) -> Finding:
    """Checks the directory, or writes and deletes a small object in the bucket."""
    settings = machine.worker_settings
    if settings.image_store == "dir":
        directory = _directory(machine, settings.image_store_dir, "store")
        directory = directory or store_dir(settings, settings.sluice_data_dir).absolute()
        return _write_problem(machine, directory, "IMAGE_STORE_DIR") or ok(str(directory))
    try:
        asyncio.run(create_storage(settings).check())
    except SluiceError as error:
        problem, _, fix = str(error).rpartition("; ")
        cause = "results cannot be stored; images fail with UPLOAD_FAILED"
        return fail(problem or fix, cause, fix if problem else "correct IMAGE_S3_BUCKET")
    return ok(f"the bucket {settings.image_s3_bucket} accepts objects")


@check(
    "images.packages",
    "the packages for decoding and encoding images are installed",
    "`pip install 'sluice[images]'`, for HEIC `pip install 'sluice[heic]'`",
)
def packages(machine: Machine) -> Finding:
    """Without them workers start, but every image fails."""
    if find_spec("PIL") is None:
        fix = "pip install 'sluice[images]' (where the worker runs)"
        return note("Pillow is not installed", "images fail with INTERNAL_ERROR", fix)
    wants_heic = "heic" in machine.worker_settings.image_formats.lower()
    if wants_heic and find_spec("pillow_heif") is None:
        cause = "IMAGE_FORMATS contains heic; such images fail with INTERNAL_ERROR"
        return warn("pillow-heif is not installed", cause, "pip install 'sluice[heic]'")
    return ok(f"Pillow; {machine.worker_settings.image_formats}")


@check(
    "images.detector",
    "a face detector is installed, as set by IMAGE_DETECTOR",
    "`sluice model install --only faces` and `pip install 'sluice[faces]'`, or IMAGE_DETECTOR=none",
)
def detector(machine: Machine) -> Finding:
    """Without a detector, faces are not blurred; image records contain the reason."""
    settings = machine.worker_settings
    configured = settings.image_detector
    if configured == Detector.NONE.value:
        return note("IMAGE_DETECTOR=none", "faces are not blurred")
    is_required = configured != "auto" or bool(settings.image_model_path)
    report = fail if is_required else note
    cause = (
        "the settings require it, so workers do not start"
        if is_required
        else "faces are not blurred"
    )
    if settings.image_model_path:
        if not machine.path(settings.image_model_path).is_file():
            seen = f"{settings.image_model_path} does not exist"
            return report(seen, cause, "correct IMAGE_MODEL_PATH")
        name = settings.image_model_path
    elif configured == Detector.YUNET.value:
        seen = "IMAGE_DETECTOR=yunet without IMAGE_MODEL_PATH"
        return report(seen, cause, "set IMAGE_MODEL_PATH to the ONNX file of the model")
    else:
        directory = models_directory(machine)
        if FACES.missing_files(directory):
            return report(f"no {FACES.name} in {directory}", cause, _INSTALL)
        name = f"{FACES.name} in {directory}"
    if find_spec("cv2") is None:
        return report(f"{name}, but OpenCV is not installed", cause, "pip install 'sluice[faces]'")
    return ok(f"{name}, {settings.image_blur}")


def _directory(machine: Machine, named: str, below: str) -> Path | None:
    """The directory of the settings, or of the installer; None for the default."""
    if named:
        return machine.path(named) if Path(named).is_absolute() else Path(named).absolute()
    return machine.path(f"{INSTALLED_DIRECTORY}/{below}") if machine.remedies.installed else None


def _write_problem(machine: Machine, directory: Path, variable: str) -> Finding | None:
    """Why the directory cannot be written to; None if it can."""
    existing = directory
    while not existing.exists() and existing.parent != existing:
        existing = existing.parent
    cause = "every upload is refused, or every image fails with UPLOAD_FAILED"
    if not existing.is_dir():
        return fail(f"{existing} is not a directory", cause, f"correct {variable}")
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = f"sudo chgrp sluice {existing} && sudo chmod 2770 {existing}, or set {variable}"
        return fail(f"{existing} is not writable", cause, fix)
    if machine.remedies.installed and existing.stat().st_mode & _GROUP_BITS != _GROUP_BITS:
        mode = stat.S_IMODE(existing.stat().st_mode)
        fix = f"sudo chgrp sluice {existing} && sudo chmod 2770 {existing}"
        return fail(
            f"{existing} has mode {mode:o}", f"its group has no write permission; {cause}", fix
        )
    return None


CHECKS = (spool, store, packages, detector)
