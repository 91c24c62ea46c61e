"""Invalid uploads: broken, oversized or disguised files, and polyglots."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from functools import cache

from PIL import Image

from tests.support.files.photos import animation, encoded, photograph, png, scene

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


def jpeg_bomb() -> bytes:
    """A JPEG with a wrong size in its header."""
    made = encoded(scene(64, 48), "jpeg")
    at = made.index(b"\xff\xc0") + 5
    return made[:at] + struct.pack(">HH", 65_000, 65_000) + made[at + 4 :]


def gif_bomb() -> bytes:
    made = animation("gif", 1)
    return made[:6] + struct.pack("<HH", 65_535, 65_535) + made[10:]


def tiff_bomb() -> bytes:
    made = encoded(scene(64, 48), "tiff")
    for tag in (256, 257):  # width and height
        at = made.index(struct.pack("<HH", tag, 4)) + 8
        made = made[:at] + struct.pack("<I", 60_000) + made[at + 4 :]
    return made


def webp_bomb(side: int = 16_000) -> bytes:
    """An animation on a canvas of this size; libwebp would allocate the memory at once."""
    made = animation("webp", 2)
    at = made.index(b"VP8X") + 12
    return made[:at] + (side - 1).to_bytes(3, "little") * 2 + made[at + 6 :]


def avif_bomb(side: int = 30_000) -> bytes:
    return _with_extent(encoded(scene(64, 48), "avif", speed=10), side)


def heic_bomb(side: int = 30_000) -> bytes:
    return _with_extent(encoded(scene(64, 48), "heic"), side)


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
    image = scene(0x2A2F, 4).quantize(8)
    made = encoded(image, "gif")
    assert made[6:8] == b"/*"
    return made + SCRIPT


def png_with_more(
    kind: bytes = b"prVt", content: bytes = SCRIPT, image: Image.Image | None = None
) -> bytes:
    """A PNG with an additional unknown chunk, and a script after its end."""
    whole = encoded(scene(64, 48) if image is None else image, "png")
    chunk = struct.pack(">I", len(content)) + kind + content
    chunk += struct.pack(">I", zlib.crc32(kind + content))
    return whole[:33] + chunk + whole[33:] + SCRIPT
