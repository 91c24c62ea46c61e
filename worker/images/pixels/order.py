"""What is to be done with an image, what came of it, and why nothing did. All of it picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from common.contracts.images import ErrorCode, Reason
from worker.images.pixels.formats import known_formats

if TYPE_CHECKING:
    from common.image_settings import ImageWorkerSettings
    from worker.images.detect.choice import DetectorChoice

#: What people read of each reason.
MESSAGES: Final = {
    Reason.FILE_EMPTY: "file is empty",
    Reason.FILE_TOO_LARGE: "file too large",
    Reason.UNSUPPORTED_FORMAT: "unsupported format",
    Reason.TYPE_MISMATCH: "magic bytes do not match declared type",
    Reason.DIMENSIONS_EXCEED_LIMIT: "image dimensions exceed limit",
    Reason.TOO_MANY_FRAMES: "animation has too many frames",
    Reason.TRUNCATED: "image file is truncated",
    Reason.DAMAGED: "image file is damaged",
    Reason.UNSUPPORTED_COLOR_MODE: "color mode not supported",
    Reason.DETECTION_FAILED: "detection failed",
    Reason.NOT_ENCODABLE: "image could not be encoded",
    Reason.OUT_OF_MEMORY: "image takes too much memory",
    Reason.CRASHED: "the process that had the image crashed",
}
_MOST_CHARS: Final = 300


class Refused(Exception):
    """There is something wrong with the image, and another attempt would find it again."""

    def __init__(self, code: ErrorCode, reason: str, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.code = code
        #: One of `Reason`.
        self.reason = reason
        self.message = message
        #: What a library said, for the log; it may quote the file, so it is not for clients.
        self.cause = cause

    def __reduce__(self) -> tuple[type[Refused], tuple[ErrorCode, str, str, str]]:
        return Refused, (self.code, self.reason, self.message, self.cause)


def refused(code: ErrorCode, reason: Reason, cause: BaseException | None = None) -> Refused:
    """The error for a reason, in its usual words."""
    told = "" if cause is None else f"{type(cause).__name__}: {cause}"[:_MOST_CHARS]
    return Refused(code, reason.value, MESSAGES[reason], told)


@dataclass(frozen=True)
class Limits:
    """What is taken for an image, and what is made of it. The settings say what each means."""

    max_bytes: int
    max_pixels: int
    #: Names as in `formats.FORMATS`.
    formats: frozenset[str]
    max_width: int
    quality: int

    @classmethod
    def of(cls, settings: ImageWorkerSettings) -> Limits:
        """As the settings say; raises ValueError for formats that nobody knows."""
        return cls(
            max_bytes=settings.image_max_bytes,
            max_pixels=settings.image_max_pixels,
            formats=known_formats(settings.image_formats),
            max_width=settings.image_max_width,
            quality=settings.image_quality,
        )


@dataclass(frozen=True)
class Order:
    """One image to be processed."""

    #: The upload, and where the WebP goes.
    path: str
    output: str
    #: Content type that the client said; empty or `application/octet-stream` for nothing.
    declared_type: str
    limits: Limits
    #: Whether faces are wanted found, and who finds them: None for nobody.
    detect: bool = False
    detector: DetectorChoice | None = None


@dataclass(frozen=True)
class Made:
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
