"""Invalid uploads: broken, oversized or disguised files, and polyglots."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from functools import cache

from PIL import Image

from tests.support.files.photos import animation, encoded, harness, photograph, png

HTML = b"<!DOCTYPE html><html><script>alert(1)</script></html>"
SVG = (
    b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="10" height="10">'
    b"<script>alert(1)</script></svg>"
)
SCRIPT = b"*/=1;alert('polyglot script');/*"
ZIP_MEMBER = "hidden-in-the-picture.txt"


def truncated(kind: str) -> bytes:
    """The first two thirds of a file."""
    whole = photograph(kind)
    return whole[: len(whole) * 2 // 3]


# -- bombs ---------------------------------------------------------------------------------


def png_bomb_by_header(width: int = 50_000, height: int = 50_000) -> bytes:
    """A few bytes whose header claims 2,500 megapixels."""
    return png(width, height, 8, 6, zlib.compress(bytes(1000)))


@cache
def real_png_bomb(width: int = 11_000, height: int = 11_000, channels: int = 1) -> bytes:
    """A real image of 121 megapixels in half a megabyte."""
    packer = zlib.compressobj(1)
    row = bytes(width * channels + 1)
    packed = b"".join(packer.compress(row * 100) for _ in range(height // 100))
    return png(width, height, 8, {1: 0, 4: 6}[channels], packed + packer.flush())


def jpeg_bomb(width: int = 65_000, height: int = 65_000) -> bytes:
    """A JPEG with a wrong size in its header."""
    made = bytearray(encoded(harness(64, 48), "jpeg"))
    at = made.index(b"\xff\xc0")
    made[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(made)


def gif_bomb(width: int = 65_535, height: int = 65_535) -> bytes:
    made = bytearray(animation("gif", 1))
    made[6:10] = struct.pack("<HH", width, height)
    return bytes(made)


def webp_bomb(side: int = 16_000) -> bytes:
    """An animation on a canvas of this size; libwebp would allocate the memory at once."""
    made = bytearray(animation("webp", 2))
    at = made.index(b"VP8X") + 12
    made[at : at + 6] = (side - 1).to_bytes(3, "little") * 2
    return bytes(made)


def avif_bomb(side: int = 30_000) -> bytes:
    return _with_extent(encoded(harness(64, 48), "avif", speed=10), side)


def heic_bomb(side: int = 30_000) -> bytes:
    return _with_extent(encoded(harness(64, 48), "heic"), side)


def _with_extent(whole: bytes, side: int) -> bytes:
    at = whole.index(b"ispe") + 8
    return whole[:at] + struct.pack(">II", side, side) + whole[at + 8 :]


def gif_of_frames(frames: int) -> bytes:
    """A GIF with this many frames of fifteen bytes each."""
    head = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(6)
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return head + frame * frames + b"\x3b"


# -- polyglots -----------------------------------------------------------------------------


def jpeg_and_zip() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr(ZIP_MEMBER, "secret" * 100)
    return photograph("jpeg") + archive.getvalue()


def gif_and_script() -> bytes:
    """A GIF that a browser would run: its width starts a JavaScript comment."""
    image = harness(0x2A2F, 4).quantize(8)
    made = encoded(image, "gif")
    assert made[6:8] == b"/*"
    return made + SCRIPT


def png_with_more(
    kind: bytes = b"prVt", content: bytes = SCRIPT, image: Image.Image | None = None
) -> bytes:
    """A PNG with an additional unknown chunk, and a script after its end."""
    whole = encoded(harness(64, 48) if image is None else image, "png")
    chunk = struct.pack(">I", len(content)) + kind + content
    chunk += struct.pack(">I", zlib.crc32(kind + content))
    return whole[:33] + chunk + whole[33:] + SCRIPT
