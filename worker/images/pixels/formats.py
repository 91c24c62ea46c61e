"""Which formats there are, and how their files begin. A name or a declared type proves nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

#: As much of a file as is needed to tell its format.
HEAD_BYTES: Final = 64
#: Declared types that say nothing.
UNDECLARED: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})


class Format(NamedTuple):
    """One format."""

    #: As Pillow calls it.
    plugin: str
    #: Content types under which it comes.
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

_BEGINNINGS: Final = (
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


def known_formats(names: str) -> frozenset[str]:
    """Formats out of a list with commas; raises ValueError for one that nobody knows."""
    found = frozenset(name.strip().lower() for name in names.split(",") if name.strip())
    if unknown := sorted(found - set(FORMATS)):
        raise ValueError(
            f"IMAGE_FORMATS has {', '.join(unknown)}; known are {', '.join(sorted(FORMATS))}"
        )
    if not found:
        raise ValueError("IMAGE_FORMATS is empty; name at least one format, such as jpeg")
    return found


def format_of(head: bytes) -> str:
    """The format of a file that begins so; empty for none of ours."""
    for beginning, name in _BEGINNINGS:
        if head.startswith(beginning):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        return _format_by_brand(head)
    return ""


def fits(declared_type: str, name: str) -> bool:
    """Whether what a client declared is what it sent, or nothing."""
    declared = declared_type.partition(";")[0].strip().lower()
    return declared in UNDECLARED or declared in FORMATS[name].types


def _format_by_brand(head: bytes) -> str:
    """AVIF and HEIC are boxes of the same kind, and say in the first what they are."""
    length = min(int.from_bytes(head[:4], "big"), len(head))
    # The major brand, then those that it is compatible with; between them stands a version.
    brands = [head[8:12], *(head[at : at + 4] for at in range(16, length - 3, 4))]
    for brand in brands:
        if brand in _AVIF_BRANDS:
            return "avif"
        if brand in _HEIC_BRANDS:
            return "heic"
    return ""
