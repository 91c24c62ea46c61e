"""Images: can uploads wait and images be kept, is there what processes them, does anybody look?"""

from __future__ import annotations

import asyncio
import os
import stat
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from common.contracts.images import Detector
from common.errors import SluiceError
from common.images.directories import spool_dir, store_dir
from common.images.spool import Spool
from common.images.storage_choice import storage_of
from ops.doctor.box import Box
from ops.doctor.finding import Finding, check, fail, note, ok, warn
from ops.doctor.model_checks import models_of
from ops.doctor.text import plural
from ops.model.catalogue import FACES

#: Where the installer lets gateway and workers keep them.
HOME: Final = "/var/lib/sluice-images"
#: Read, write and enter, for the group that gateway and workers share.
_GROUP_BITS: Final = stat.S_IRWXG
_INSTALL: Final = "sluice model install --only faces"


@check(
    "images.spool",
    "uploads can wait for a worker in a directory that gateways and workers share",
    "`sudo chgrp sluice DIR && sudo chmod 2770 DIR`, or set IMAGE_SPOOL_DIR",
)
def spool(box: Box) -> Finding:
    """Whoever may not write there refuses every upload."""
    settings = box.worker_settings
    directory = _place(box, settings.image_spool_dir, "spool")
    directory = directory or spool_dir(settings, settings.sluice_data_dir).absolute()
    trouble = _trouble(box, directory, "IMAGE_SPOOL_DIR")
    if trouble is not None:
        return trouble
    waiting = sum(1 for entry in Spool(directory).entries() if not entry.is_part)
    return ok(f"{directory}, {plural(waiting, 'upload')} in it")


@check(
    "images.store",
    "processed images can be kept: the directory may be written to, or the bucket answers",
    "`sudo chgrp sluice DIR && sudo chmod 2770 DIR`, or correct IMAGE_STORE and IMAGE_S3_*",
    limit_s=30.0,
)
def store(box: Box) -> Finding:
    """A directory is looked at; to a bucket a small object is written, and deleted again."""
    settings = box.worker_settings
    if settings.image_store == "dir":
        directory = _place(box, settings.image_store_dir, "store")
        directory = directory or store_dir(settings, settings.sluice_data_dir).absolute()
        return _trouble(box, directory, "IMAGE_STORE_DIR") or ok(str(directory))
    try:
        asyncio.run(storage_of(settings).check())
    except SluiceError as error:
        said, _, fix = str(error).rpartition("; ")
        cause = "nothing can be kept; images fail with UPLOAD_FAILED"
        return fail(said or fix, cause, fix if said else "correct IMAGE_S3_BUCKET")
    return ok(f"the bucket {settings.image_s3_bucket} takes objects")


@check(
    "images.packages",
    "what decodes and encodes images is installed",
    "`pip install 'sluice[images]'`, for HEIC `pip install 'sluice[heic]'`",
)
def packages(box: Box) -> Finding:
    """Without it workers run, and every image fails."""
    if find_spec("PIL") is None:
        fix = "pip install 'sluice[images]' (where the worker runs)"
        return note("Pillow is not installed", "images fail with INTERNAL_ERROR", fix)
    wants_heic = "heic" in box.worker_settings.image_formats.lower()
    if wants_heic and find_spec("pillow_heif") is None:
        cause = "IMAGE_FORMATS names heic; images fail with INTERNAL_ERROR"
        return warn("pillow-heif is not installed", cause, "pip install 'sluice[heic]'")
    return ok(f"Pillow; {box.worker_settings.image_formats}")


@check(
    "images.detector",
    "somebody looks for faces in images, as IMAGE_DETECTOR wants it",
    "`sluice model install --only faces` and `pip install 'sluice[faces]'`, or IMAGE_DETECTOR=none",
)
def detector(box: Box) -> Finding:
    """Without one faces stay as they are; records say so."""
    settings = box.worker_settings
    wanted = settings.image_detector
    if wanted == Detector.NONE.value:
        return note("IMAGE_DETECTOR=none", "faces stay as they are; records say so")
    is_named = wanted != "auto" or bool(settings.image_model_path)
    made = fail if is_named else note
    cause = (
        "the settings name it, and workers do not start"
        if is_named
        else "faces stay as they are; records say so"
    )
    if settings.image_model_path:
        if not box.path(settings.image_model_path).is_file():
            seen = f"there is no {settings.image_model_path}"
            return made(seen, cause, "correct IMAGE_MODEL_PATH")
        name = settings.image_model_path
    elif wanted == Detector.YUNET.value:
        seen = "IMAGE_DETECTOR=yunet without a model"
        return made(seen, cause, "set IMAGE_MODEL_PATH to its ONNX file")
    else:
        directory = models_of(box)
        if FACES.lacking(directory):
            return made(f"no {FACES.name} in {directory}", cause, _INSTALL)
        name = f"{FACES.name} in {directory}"
    if find_spec("cv2") is None:
        return made(f"{name}, and OpenCV is not installed", cause, "pip install 'sluice[faces]'")
    return ok(f"{name}, {settings.image_blur}")


def _place(box: Box, named: str, below: str) -> Path | None:
    """Where the settings say, or the installer's units; None for the usual place."""
    if named:
        return box.path(named) if Path(named).is_absolute() else Path(named).absolute()
    return box.path(f"{HOME}/{below}") if box.remedies.installed else None


def _trouble(box: Box, directory: Path, variable: str) -> Finding | None:
    """Why nothing can be put there; None where it can."""
    there = directory
    while not there.exists() and there.parent != there:
        there = there.parent
    cause = "every upload is refused, or every image fails with UPLOAD_FAILED"
    if not there.is_dir():
        return fail(f"{there} is no directory", cause, f"correct {variable}")
    if not os.access(there, os.W_OK | os.X_OK):
        fix = f"sudo chgrp sluice {there} && sudo chmod 2770 {there}, or set {variable}"
        return fail(f"{there} may not be written to", cause, fix)
    if box.remedies.installed and there.stat().st_mode & _GROUP_BITS != _GROUP_BITS:
        mode = stat.S_IMODE(there.stat().st_mode)
        fix = f"sudo chgrp sluice {there} && sudo chmod 2770 {there}"
        return fail(f"{there} has mode {mode:o}", f"its group may not write; {cause}", fix)
    return None


CHECKS = (spool, store, packages, detector)
