"""Requests, results and errors of image processing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice.common.contracts.images import ErrorCode, FailureReason
from sluice.worker.execution.process_pool.errors import ReportedError
from sluice.worker.features.images.pixels.formats import parse_formats

if TYPE_CHECKING:
    from sluice.common.settings.images import ImageWorkerSettings
    from sluice.worker.features.images.detect.choice import DetectorChoice

#: Message for each reason.
REASON_MESSAGES: Final = {
    FailureReason.FILE_EMPTY: "file is empty",
    FailureReason.FILE_TOO_LARGE: "file too large",
    FailureReason.UNSUPPORTED_FORMAT: "unsupported format",
    FailureReason.TYPE_MISMATCH: "magic bytes do not match declared type",
    FailureReason.DIMENSIONS_EXCEED_LIMIT: "image dimensions exceed limit",
    FailureReason.TOO_MANY_FRAMES: "animation has too many frames",
    FailureReason.TRUNCATED: "image file is truncated",
    FailureReason.DAMAGED: "image file is damaged",
    FailureReason.UNSUPPORTED_COLOR_MODE: "color mode not supported",
    FailureReason.DETECTION_FAILED: "detection failed",
    FailureReason.NOT_ENCODABLE: "image could not be encoded",
    FailureReason.OUT_OF_MEMORY: "image takes too much memory",
    FailureReason.CRASHED: "the process that had the image crashed",
}
_MOST_CHARS: Final = 300


class InvalidImage(ReportedError):
    """The image is invalid; retrying would give the same result."""

    def __init__(self, code: str, reason: str, cause: str = "") -> None:
        """Raises ValueError for an unknown code or reason."""
        self.code = ErrorCode(code)
        #: A value of `FailureReason`.
        self.reason = FailureReason(reason).value
        self.message = REASON_MESSAGES[FailureReason(reason)]
        #: Message of a library, for the log. It may quote the file, so clients do not get it.
        self.cause = str(cause)[:_MOST_CHARS]
        super().__init__(self.message)

    def __reduce__(self) -> tuple[type[InvalidImage], tuple[str, str, str]]:
        return InvalidImage, (self.code.value, self.reason, self.cause)


def invalid_image(
    code: ErrorCode, reason: FailureReason, cause: BaseException | None = None
) -> InvalidImage:
    """The error for a reason, with its usual message."""
    text = "" if cause is None else f"{type(cause).__name__}: {cause}"
    return InvalidImage(code, reason.value, text)


@dataclass(frozen=True)
class ImageLimits:
    """Limits of uploads and options of the output, from the settings."""

    max_bytes: int
    max_pixels: int
    #: Keys of `formats.FORMATS`.
    formats: frozenset[str]
    max_width: int
    quality: int

    @classmethod
    def of(cls, settings: ImageWorkerSettings) -> ImageLimits:
        """Raises ValueError for unknown formats."""
        return cls(
            max_bytes=settings.image_max_bytes,
            max_pixels=settings.image_max_pixels,
            formats=parse_formats(settings.image_formats),
            max_width=settings.image_max_width,
            quality=settings.image_quality,
        )


@dataclass(frozen=True)
class ProcessingRequest:
    """One image to be processed."""

    #: Path of the upload and path for the WebP.
    path: str
    output: str
    #: Content type sent by the client; empty or `application/octet-stream` if unspecified.
    declared_type: str
    limits: ImageLimits
    #: Whether detection was requested, and the detectors; None if there are none.
    detect: bool = False
    detector: DetectorChoice | None = None


@dataclass(frozen=True)
class ProcessingResult:
    """Facts about the WebP in `output`."""

    sha256: str
    md5: str
    size_bytes: int
    #: Size of the upload after rotation.
    original_width: int
    original_height: int
    width: int
    height: int
    #: Keyed by `DetailField`, JSON-compatible.
    details: dict[str, Any]
