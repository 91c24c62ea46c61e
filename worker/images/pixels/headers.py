"""What headers say, where a library would do too much work before it says the same."""

from __future__ import annotations

from typing import IO, Final

_VP8_KEY_FRAME: Final = b"\x9d\x01\x2a"
_GIF_IMAGE, _GIF_EXTENSION = 0x2C, 0x21
#: Bit of a GIF's flags that says that a table of colours follows; its length is in the lowest.
_HAS_TABLE: Final = 0x80
#: How a box with the size of an image begins: its length, its name, its version.
_EXTENT: Final = b"\0\0\0\x14ispe\0\0\0\0"
#: Of a file's description, so much is looked at.
_MOST_META_BYTES: Final = 1024 * 1024


def webp_size(head: bytes) -> tuple[int, int] | None:
    """Width and height of a WebP's canvas; None where the header does not make sense.

    libwebp takes the memory for it as soon as it is given the file.
    """
    kind, body = head[12:16], head[20:]
    if kind == b"VP8X" and len(body) >= 10:
        return _number(body[4:7]) + 1, _number(body[7:10]) + 1
    if kind == b"VP8L" and len(body) >= 5 and body[0] == 0x2F:
        packed = _number(body[1:5])
        return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and len(body) >= 10 and body[3:6] == _VP8_KEY_FRAME:
        return _number(body[6:8]) & 0x3FFF, _number(body[8:10]) & 0x3FFF
    return None


def webp_is_whole(head: bytes, size_bytes: int) -> bool:
    """Whether a WebP is as long as it says."""
    return _number(head[4:8]) + 8 <= size_bytes


def gif_frames(file: IO[bytes], most: int) -> int:
    """Frames of a GIF, but not more than `most` + 1, without looking at one.

    A file of 10 MB can have a million of them, and a library goes through all.
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
        else:  # the trailer, the end of the file, or what is no GIF any more
            break
        _skip_pieces(file)
    return frames


def boxes_size(file: IO[bytes], size_bytes: int) -> tuple[int, int] | None:
    """Size of the biggest image in the boxes of an AVIF or HEIC; None if they are cut off.

    Libraries do not tell one that is too big, or of which the end is missing, from rubbish.
    """
    at, found = 0, (0, 0)
    while at + 8 <= size_bytes:
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:  # the real one did not fit
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # as long as there is something
            break
        if length < 8 or at + length > size_bytes:
            return None
        if head[4:8] == b"meta":
            file.seek(at)
            found = _biggest(file.read(min(length, _MOST_META_BYTES)))
        at += length
    return found


def _biggest(meta: bytes) -> tuple[int, int]:
    found = (0, 0)
    at = meta.find(_EXTENT)
    while at >= 0:
        width, height = (
            int.from_bytes(meta[at + offset : at + offset + 4], "big") for offset in (12, 16)
        )
        found = max(found, (width, height), key=lambda size: size[0] * size[1])
        at = meta.find(_EXTENT, at + 1)
    return found


def _skip_table(file: IO[bytes], flags: int) -> None:
    if flags & _HAS_TABLE:
        file.seek(3 << ((flags & 7) + 1), 1)


def _skip_pieces(file: IO[bytes]) -> None:
    while length := file.read(1)[0:1]:
        if length == b"\0":
            return
        file.seek(length[0], 1)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "little")
