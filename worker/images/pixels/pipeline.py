"""The stages of an image, one after the other, each noted as it begins."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from PIL import Image

from common.contracts.images import Blur, DetailField, Detector, ErrorCode, Reason, Stage
from worker.compute.child import note
from worker.images.detect import find_and_blur
from worker.images.pixels.availability import missing_for
from worker.images.pixels.decoding import Decoded, decode
from worker.images.pixels.facts import facts_of
from worker.images.pixels.formats import HEAD_BYTES, fits, format_of
from worker.images.pixels.order import Made, Order, Refused, refused

#: How hard the encoder tries, from 0 to 6.
WEBP_METHOD: Final = 4
#: What is wrong where a stage fails and does not say with what.
_OTHERWISE: Final = {
    Stage.DECODING: (ErrorCode.DECODE_FAILED, Reason.DAMAGED),
    Stage.PROCESSING: (ErrorCode.PROCESSING_FAILED, Reason.DETECTION_FAILED),
    Stage.ENCODING: (ErrorCode.ENCODING_FAILED, Reason.NOT_ENCODABLE),
}


def run(order: Order) -> Made:
    """See `worker.images.pixels.process`."""
    watch = _Watch()
    with watch.stage(Stage.VALIDATING):
        source = _validated(order)
    with watch.stage(Stage.DECODING):
        decoded = decode(order.path, source, order.limits)
    with watch.stage(Stage.PROCESSING):
        found = _looked_for(order, decoded.image)
    with watch.stage(Stage.ENCODING):
        facts = facts_of(decoded.image)
        encoded = _encoded(decoded.image, order.limits.quality)
    Path(order.output).write_bytes(encoded)
    details = {
        DetailField.SOURCE_FORMAT: source,
        DetailField.SOURCE_FRAMES: decoded.frames,
        DetailField.HAS_ALPHA: decoded.image.mode == "RGBA",
        **found,
        DetailField.THUMBHASH: facts.thumbhash,
        DetailField.DOMINANT_COLOR: facts.dominant_color,
        DetailField.TIMINGS_MS: watch.timings_ms,
    }
    return _made(decoded, encoded, {field.value: value for field, value in details.items()})


class _Watch:
    """Tells the stages, and keeps the time that each takes."""

    def __init__(self) -> None:
        self.timings_ms: dict[str, int] = {}

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        note(stage)
        began = time.monotonic()
        try:
            yield
        except (Refused, MemoryError):
            raise
        except Exception as error:
            if stage not in _OTHERWISE:
                raise
            code, reason = _OTHERWISE[stage]
            raise refused(code, reason, error) from error
        self.timings_ms[stage.value] = round((time.monotonic() - began) * 1000)


def _validated(order: Order) -> str:
    """The format of what was uploaded."""
    with open(order.path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
    if not size_bytes:
        raise refused(ErrorCode.VALIDATION_FAILED, Reason.FILE_EMPTY)
    if size_bytes > order.limits.max_bytes:
        raise refused(ErrorCode.VALIDATION_FAILED, Reason.FILE_TOO_LARGE)
    found = format_of(head)
    if found not in order.limits.formats or missing_for(found):
        raise refused(ErrorCode.VALIDATION_FAILED, Reason.UNSUPPORTED_FORMAT)
    if not fits(order.declared_type, found):
        raise refused(ErrorCode.VALIDATION_FAILED, Reason.TYPE_MISMATCH)
    return found


def _looked_for(order: Order, image: Image.Image) -> dict[DetailField, Any]:
    """Who looked for what, and where it was; it is unrecognisable now."""
    if not order.detect or order.detector is None or not order.detector.looks:
        return {
            DetailField.DETECTOR: Detector.NONE.value,
            DetailField.DETECTIONS: [],
            DetailField.BLUR: Blur.NONE.value,
        }
    who, detections = find_and_blur(order.detector, image)
    return {
        DetailField.DETECTOR: who,
        DetailField.DETECTIONS: detections,
        DetailField.BLUR: order.detector.blur.value,
    }


def _encoded(image: Image.Image, quality: int) -> bytes:
    """WebP of the pixels and of nothing else."""
    image.info.clear()
    made = io.BytesIO()
    image.save(
        made,
        "WEBP",
        quality=quality,
        method=WEBP_METHOD,
        exif=b"",
        xmp=b"",
        icc_profile=b"",
    )
    return made.getvalue()


def _made(decoded: Decoded, encoded: bytes, details: dict[str, Any]) -> Made:
    return Made(
        sha256=hashlib.sha256(encoded).hexdigest(),
        md5=hashlib.md5(encoded, usedforsecurity=False).hexdigest(),
        size_bytes=len(encoded),
        original_width=decoded.width,
        original_height=decoded.height,
        width=decoded.image.width,
        height=decoded.image.height,
        details=details,
    )
