"""What an upload may be declared as."""

from __future__ import annotations

from typing import Final

OCTETS: Final = "application/octet-stream"
FORM: Final = "multipart/form-data"
#: What a form may put around the file.
FORM_BYTES: Final = 64 * 1024
#: Formats that a worker may know; which ones it takes is its own to say.
UPLOAD_TYPES: Final = (
    "image/jpeg",
    "image/png",
    "image/webp",
    "image/gif",
    "image/avif",
    "image/tiff",
    "image/heic",
    "image/heif",
    OCTETS,
)
#: What many call it.
_ALSO: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg"}


def plain_type(value: str) -> str:
    """A Content-Type without its parameters, under its usual name."""
    plain = value.partition(";")[0].strip().lower()
    return _ALSO.get(plain, plain)
