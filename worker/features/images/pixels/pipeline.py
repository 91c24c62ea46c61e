"""The processing stages of an image; each is noted as it begins."""

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

from sluice.common.contracts.images import (
    Blur,
    DetailField,
    Detector,
    ErrorCode,
    FailureReason,
    Stage,
)
from sluice.worker.execution.process_pool.child import note
from sluice.worker.features.images.detect import find_and_blur
from sluice.worker.features.images.pixels.decode import DecodedImage, decode
from sluice.worker.features.images.pixels.formats import (
    HEAD_BYTES,
    detect_format,
    matches_declared_type,
    missing_package_for,
)
from sluice.worker.features.images.pixels.placeholder import make_placeholder
from sluice.worker.features.images.pixels.types import (
    InvalidImage,
    ProcessingRequest,
    ProcessingResult,
    invalid_image,
)

#: Effort of the WebP encoder, from 0 to 6.
WEBP_METHOD: Final = 4
#: Error of a stage that fails with an unexpected exception.
_DEFAULT_ERRORS: Final = {
    Stage.DECODING: (ErrorCode.DECODE_FAILED, FailureReason.DAMAGED),
    Stage.PROCESSING: (ErrorCode.PROCESSING_FAILED, FailureReason.DETECTION_FAILED),
    Stage.ENCODING: (ErrorCode.ENCODING_FAILED, FailureReason.NOT_ENCODABLE),
}


def process_image(order: ProcessingRequest) -> ProcessingResult:
    watch = _StageTimer()
    with watch.stage(Stage.VALIDATING):
        source = _validate(order)
    with watch.stage(Stage.DECODING):
        decoded = decode(order.path, source, order.limits)
    with watch.stage(Stage.PROCESSING):
        found = _detect(order, decoded.image)
    with watch.stage(Stage.ENCODING):
        facts = make_placeholder(decoded.image)
        encoded = _encode(decoded.image, order.limits.quality)
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
    return _result(decoded, encoded, dict(details.items()))


class _StageTimer:
    """Notes each stage and measures its duration."""

    def __init__(self) -> None:
        self.timings_ms: dict[str, int] = {}

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        note(stage.value)
        began = time.monotonic()
        try:
            yield
        except (InvalidImage, MemoryError):
            raise
        except Exception as error:
            if stage not in _DEFAULT_ERRORS:
                raise
            code, reason = _DEFAULT_ERRORS[stage]
            raise invalid_image(code, reason, error) from error
        self.timings_ms[stage.value] = round((time.monotonic() - began) * 1000)


def _validate(order: ProcessingRequest) -> str:
    """Validate the upload; returns its format. Raises InvalidImage."""
    with open(order.path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
    if not size_bytes:
        raise invalid_image(ErrorCode.VALIDATION_FAILED, FailureReason.FILE_EMPTY)
    if size_bytes > order.limits.max_bytes:
        raise invalid_image(ErrorCode.VALIDATION_FAILED, FailureReason.FILE_TOO_LARGE)
    found = detect_format(head)
    if found not in order.limits.formats or missing_package_for(found):
        raise invalid_image(ErrorCode.VALIDATION_FAILED, FailureReason.UNSUPPORTED_FORMAT)
    if not matches_declared_type(order.declared_type, found):
        raise invalid_image(ErrorCode.VALIDATION_FAILED, FailureReason.TYPE_MISMATCH)
    return found


def _detect(order: ProcessingRequest, image: Image.Image) -> dict[str, Any]:
    """Detect and blur in place; returns the details for the record."""
    if not order.detect or order.detector is None or not order.detector.enabled:
        return {
            DetailField.DETECTOR: Detector.NONE.value,
            DetailField.DETECTIONS: [],
            DetailField.BLUR: Blur.NONE.value,
        }
    detector, detections = find_and_blur(order.detector, image)
    return {
        DetailField.DETECTOR: detector,
        DetailField.DETECTIONS: detections,
        DetailField.BLUR: order.detector.blur.value,
    }


def _encode(image: Image.Image, quality: int) -> bytes:
    """WebP of the pixels, without any metadata."""
    image.info.clear()
    encoded = io.BytesIO()
    image.save(
        encoded,
        "WEBP",
        quality=quality,
        method=WEBP_METHOD,
        exif=b"",
        xmp=b"",
        icc_profile=b"",
    )
    return encoded.getvalue()


def _result(decoded: DecodedImage, encoded: bytes, details: dict[str, Any]) -> ProcessingResult:
    return ProcessingResult(
        sha256=hashlib.sha256(encoded).hexdigest(),
        md5=hashlib.md5(encoded, usedforsecurity=False).hexdigest(),
        size_bytes=len(encoded),
        original_width=decoded.width,
        original_height=decoded.height,
        width=decoded.image.width,
        height=decoded.image.height,
        details=details,
    )
