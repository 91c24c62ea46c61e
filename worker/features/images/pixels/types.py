"""What is to be done with an image, what came of it, and why nothing did. All of it picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from common.contracts.images import ErrorCode, FailureReason
from worker.features.images.pixels.formats import parse_formats

if TYPE_CHECKING:
    from common.settings.images import ImageWorkerSettings
    from worker.features.images.detect.choice import DetectorChoice

#: What people read of each reason.
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


class InvalidImage(Exception):
    """There is something wrong with the image, and another attempt would find it again."""

    def __init__(self, code: ErrorCode, reason: str, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.code = code
        #: One of `ReasonQuery`.
        self.reason = reason
        self.message = message
        #: What a library said, for the log; it may quote the file, so it is not for clients.
        self.cause = cause

    def __reduce__(self) -> tuple[type[InvalidImage], tuple[ErrorCode, str, str, str]]:
        return InvalidImage, (self.code, self.reason, self.message, self.cause)


def invalid_image(
    code: ErrorCode, reason: FailureReason, cause: BaseException | None = None
) -> InvalidImage:
    """The error for a reason, in its usual words."""
    told = "" if cause is None else f"{type(cause).__name__}: {cause}"[:_MOST_CHARS]
    return InvalidImage(code, reason.value, REASON_MESSAGES[reason], told)


@dataclass(frozen=True)
class ImageLimits:
    """What is taken for an image, and what is made of it. The settings say what each means."""

    max_bytes: int
    max_pixels: int
    #: Names as in `formats.FORMATS`.
    formats: frozenset[str]
    max_width: int
    quality: int

    @classmethod
    def of(cls, settings: ImageWorkerSettings) -> ImageLimits:
        """As the settings say; raises ValueError for formats that nobody knows."""
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

    #: The upload, and where the WebP goes.
    path: str
    output: str
    #: Content type that the client said; empty or `application/octet-stream` for nothing.
    declared_type: str
    limits: ImageLimits
    #: Whether faces are wanted found, and who finds them: None for nobody.
    detect: bool = False
    detector: DetectorChoice | None = None


@dataclass(frozen=True)
class ProcessingResult:
    """What lies in `output` now."""

    #: Of the WebP, all three.
    sha256: str
    md5: str
    size_bytes: int
    #: Upright, as people see it.
    original_width: int
    original_height: int
    width: int
    height: int
    #: By `DetailField`, ready for JSON.
    details: dict[str, Any]
