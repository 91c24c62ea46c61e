"""Image formats: detection, installed support, and header fields that are checked without a
library.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import IO, Final, NamedTuple


def missing_package_for(format: str) -> str:
    """What to install for a format; '' if its packages are installed."""
    if importlib.util.find_spec("PIL") is None:
        return "images need the package Pillow; install sluice[images]"
    if format == "heic" and importlib.util.find_spec("pillow_heif") is None:
        return "heic needs the package pillow-heif; install sluice[heic]"
    return ""


def missing_package(formats: Iterable[str]) -> str:
    """What to install for the first format that lacks a package; '' if none does."""
    return next(filter(None, map(missing_package_for, sorted(formats))), "")


def installed_formats(formats: Iterable[str]) -> list[str]:
    """Those of the formats whose packages are installed."""
    return [name for name in formats if not missing_package_for(name)]


#: Bytes needed to detect the format of a file.
HEAD_BYTES: Final = 64
#: Content types that mean "unknown".
UNDECLARED: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})


class Format(NamedTuple):
    """Pillow plugin and content types of an image format."""

    plugin: str
    types: frozenset[str]


FORMATS: Final = {
    "jpeg": Format("JPEG", frozenset({"image/jpeg", "image/jpg", "image/pjpeg"})),
    "png": Format("PNG", frozenset({"image/png", "image/x-png", "image/apng"})),
    "webp": Format("WEBP", frozenset({"image/webp"})),
    "gif": Format("GIF", frozenset({"image/gif"})),
    "avif": Format("AVIF", frozenset({"image/avif", "image/avif-sequence"})),
    "tiff": Format("TIFF", frozenset({"image/tiff", "image/tiff-fx"})),
    "heic": Format(
        "HEIF",
        frozenset({"image/heic", "image/heif", "image/heic-sequence", "image/heif-sequence"}),
    ),
}

_MAGIC_BYTES: Final = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
)
_AVIF_BRANDS: Final = frozenset({b"avif", b"avis"})
_HEIC_BRANDS: Final = frozenset(
    {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
)


def parse_formats(names: str) -> frozenset[str]:
    """Parse a comma-separated list of formats. Raises ValueError for an unknown one."""
    found = frozenset(name.strip().lower() for name in names.split(",") if name.strip())
    if unknown := sorted(found - set(FORMATS)):
        raise ValueError(
            f"IMAGE_FORMATS has {', '.join(unknown)}; known are {', '.join(sorted(FORMATS))}"
        )
    if not found:
        raise ValueError("IMAGE_FORMATS is empty; name at least one format, such as jpeg")
    return found


def detect_format(head: bytes) -> str:
    """The format of a file with this beginning; '' if it is not supported."""
    for beginning, name in _MAGIC_BYTES:
        if head.startswith(beginning):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        return _format_by_brand(head)
    return ""


def matches_declared_type(declared_type: str, name: str) -> bool:
    """True if the declared content type fits the format or is unspecified."""
    declared = declared_type.partition(";")[0].strip().lower()
    return declared in UNDECLARED or declared in FORMATS[name].types


def _format_by_brand(head: bytes) -> str:
    """AVIF and HEIC share a container; its first box names the format."""
    length = min(int.from_bytes(head[:4], "big"), len(head))
    # The major brand, a version, then the compatible brands.
    brands = [head[8:12], *(head[at : at + 4] for at in range(16, length - 3, 4))]
    for brand in brands:
        if brand in _AVIF_BRANDS:
            return "avif"
        if brand in _HEIC_BRANDS:
            return "heic"
    return ""


_VP8_KEY_FRAME: Final = b"\x9d\x01\x2a"
_GIF_IMAGE, _GIF_EXTENSION = 0x2C, 0x21
#: Flag in a GIF for a colour table; the lowest bits hold its length.
_HAS_TABLE: Final = 0x80
#: Start of an `ispe` box with the size of an image: length, name, version.
_EXTENT_BOX: Final = b"\0\0\0\x14ispe\0\0\0\0"
#: Bytes of a `meta` box that are searched.
_MOST_META_BYTES: Final = 1024 * 1024


def webp_size(head: bytes) -> tuple[int, int] | None:
    """Width and height of a WebP's canvas; None if the header is invalid.

    Checked here because libwebp allocates the memory as soon as it gets the file.
    """
    kind, body = head[12:16], head[20:]
    if kind == b"VP8X" and len(body) >= 10:
        return _little_endian(body[4:7]) + 1, _little_endian(body[7:10]) + 1
    if kind == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        packed = _little_endian(body[1:5])
        return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(body) >= 10 and body[3:6] == _VP8_KEY_FRAME:
        return _little_endian(body[6:8]) & 0x3FFF, _little_endian(body[8:10]) & 0x3FFF
    return None


def webp_is_complete(head: bytes, size_bytes: int) -> bool:
    """True if a WebP is at least as long as its header declares."""
    return _little_endian(head[4:8]) + 8 <= size_bytes


def gif_frames(file: IO[bytes], most: int) -> int:
    """Number of frames of a GIF, counted up to `most` + 1, without decoding them.

    A file of 10 MB can have a million frames, and a library would visit all of them.
    """
    file.seek(10)
    flags = file.read(3)
    if len(flags) < 3:
        return 0
    _skip_table(file, flags[0])
    frames = 0
    while frames <= most:
        kind = file.read(1)
        if kind == bytes([_GIF_IMAGE]):
            frames += 1
            _skip_table(file, file.read(9)[8:9].ljust(1, b"\0")[0])
            file.seek(1, 1)
        elif kind == bytes([_GIF_EXTENSION]):
            file.seek(1, 1)
        else:  # the trailer, the end of the file, or invalid data
            break
        _skip_sub_blocks(file)
    return frames


def heif_size(file: IO[bytes], size_bytes: int) -> tuple[int, int] | None:
    """Size of the largest image in an AVIF or HEIC; None if the file is truncated.

    Libraries report images that are too large or truncated as damaged.
    """
    at, found = 0, (0, 0)
    while at + 8 <= size_bytes:
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:  # 64-bit length
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # extends to the end of the file
            break
        if length < 8 or at + length > size_bytes:
            return None
        if head[4:8] == b"meta":
            file.seek(at)
            found = _largest_extent(file.read(min(length, _MOST_META_BYTES)))
        at += length
    return found


def _largest_extent(meta: bytes) -> tuple[int, int]:
    found = (0, 0)
    at = meta.find(_EXTENT_BOX)
    while at >= 0:
        width, height = (
            int.from_bytes(meta[at + offset : at + offset + 4], "big") for offset in (12, 16)
        )
        found = max(found, (width, height), key=lambda size: size[0] * size[1])
        at = meta.find(_EXTENT_BOX, at + 1)
    return found


def _skip_table(file: IO[bytes], flags: int) -> None:
    if flags & _HAS_TABLE:
        file.seek(3 << ((flags & 7) + 1), 1)


def _skip_sub_blocks(file: IO[bytes]) -> None:
    while length := file.read(1)[0:1]:
        if length == b"\0":
            return
        file.seek(length[0], 1)


def _little_endian(data: bytes) -> int:
    return int.from_bytes(data, "little")
