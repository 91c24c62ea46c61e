"""Generated photographs for tests: always identical, in every format, with private metadata."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, PngImagePlugin

from tests.support.files import color_profiles
from tests.support.files.exif import COMMENT, OWNER, SERIAL, THUMBNAIL_MARK, exif, xmp

#: Colors of the corners: top left, top right, bottom left, bottom right.
CORNERS = ((220, 30, 30), (30, 190, 40), (30, 50, 210), (230, 210, 40))
FORMATS = ("jpeg", "png", "webp", "gif", "avif", "tiff", "heic")
CONTENT_TYPES = {kind: f"image/{kind}" for kind in FORMATS}


# -- scenes ----------------------------------------------------------------------------------


@cache
def _rendered(width: int, height: int, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed)
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :]
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    light = np.empty((height, width, 3), dtype=np.float32)
    for phase in range(3):
        light[..., phase] = 128 + 80 * np.sin(3 * x + phase) * np.cos(2 * y - phase)
        light[..., phase] += 40 * (y - x) * (phase - 1)
    for size, strength in ((32, 18), (8, 12), (2, 6), (1, 4)):
        grain = noise.standard_normal((height // size + 1, width // size + 1), dtype=np.float32)
        grown = Image.fromarray(grain * strength).resize((width, height), Image.Resampling.BICUBIC)
        light += np.asarray(grown)[..., None]
    image = Image.fromarray(np.clip(light, 0, 255, out=light).astype(np.uint8))
    _draw_things(image, seed)
    return image


def scene(width: int = 640, height: int = 480, seed: int = 7) -> Image.Image:
    """Gradients, grain and shapes; each corner, a tenth of a side, has its own color."""
    return _rendered(width, height, seed).copy()


def _draw_things(image: Image.Image, seed: int) -> None:
    draw, chance = ImageDraw.Draw(image), random.Random(seed)
    width, height = image.size
    for _ in range(40):
        x, y = chance.randrange(width), chance.randrange(height)
        size = chance.randint(2, max(3, min(width, height) // 6))
        shape = chance.choice((draw.ellipse, draw.rectangle))
        shape((x, y, x + size, y + size), fill=tuple(chance.randrange(256) for _ in range(3)))
    across, down = max(1, width // 10), max(1, height // 10)
    for at, colour in enumerate(CORNERS):
        left = 0 if at % 2 == 0 else width - across
        top = 0 if at < 2 else height - down
        draw.rectangle((left, top, left + across - 1, top + down - 1), fill=colour)


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Rotates an image so that the given EXIF orientation makes it upright."""
    turn = Image.Transpose
    undone_by = (
        *(turn.FLIP_LEFT_RIGHT, turn.ROTATE_180, turn.FLIP_TOP_BOTTOM, turn.TRANSPOSE),
        *(turn.ROTATE_90, turn.TRANSVERSE, turn.ROTATE_270),
    )
    return image.copy() if orientation == 1 else image.transpose(undone_by[orientation - 2])


# -- photographs with metadata ---------------------------------------------------------------


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Encodes an image without metadata."""
    if kind == "heic":
        from pillow_heif import register_heif_opener

        register_heif_opener()
    made = io.BytesIO()
    image.save(made, {"heic": "HEIF"}.get(kind, kind.upper()), **options)
    return made.getvalue()


@cache
def photograph(
    kind: str = "jpeg",
    orientation: int = 1,
    width: int = 640,
    height: int = 480,
    profile: bytes | None = None,
) -> bytes:
    """A photograph with EXIF, GPS, serial number, XMP, color profile, comment and thumbnail."""
    upright = scene(width, height)
    small = upright.copy()
    small.thumbnail((160, 160))
    marks = exif(orientation, encoded(small, "jpeg", quality=60, comment=THUMBNAIL_MARK))
    icc = color_profiles.plain_srgb() if profile is None else profile
    image = turned(upright, orientation)
    if kind == "gif":
        return _gif(image)
    return encoded(image, kind, icc_profile=icc, **_options(kind, marks))


def _options(kind: str, marks: bytes) -> dict[str, Any]:
    """How each format stores EXIF, XMP and comments, and its quality."""
    if kind == "png":
        texts = PngImagePlugin.PngInfo()
        texts.add_text("Comment", COMMENT.decode())
        texts.add_itxt("XML:com.adobe.xmp", xmp().decode())
        return {"exif": marks, "pnginfo": texts}
    if kind == "tiff":
        tags = Image.Exif()
        tags.load(b"Exif\0\0" + marks)
        texts = {270: COMMENT.decode(), 315: OWNER.decode(), 50735: SERIAL.decode()}
        more = {700: xmp(), 274: tags[274], **texts}
        return {"compression": "tiff_lzw", "exif": tags, "tiffinfo": more}
    own = {
        "jpeg": {"quality": 90, "comment": COMMENT},
        "webp": {"quality": 92},
        "avif": {"quality": 88, "speed": 9},
        "heic": {"quality": 85},
    }[kind]
    return {"exif": b"Exif\0\0" + marks, "xmp": xmp(), **own}


def _gif(image: Image.Image) -> bytes:
    """GIF has no EXIF; XMP is in an application extension, and its orientation is not applied."""
    plain = encoded(image.quantize(128), "gif", comment=COMMENT)
    table = 3 << ((plain[10] & 7) + 1)
    trailer = bytes([1, *range(255, -1, -1), 0])
    extension = b"\x21\xff\x0bXMP DataXMP" + xmp() + trailer
    return plain[: 13 + table] + extension + plain[13 + table :]


# -- special pixel formats -----------------------------------------------------------------


def cmyk_jpeg(image: Image.Image, profile: bytes | None = None) -> bytes:
    """Inverted, with Adobe's marker."""
    return encoded(image, "jpeg", quality=95, icc_profile=profile)


def ycck_jpeg(image: Image.Image) -> bytes:
    """Like `cmyk_jpeg`, with YCbCr in place of CMY, as Photoshop writes it.

    A decoder converts YCbCr to the inverse of the stored values, which are inverted, too; so YCbCr
    is of the inks themselves. Black is only inverted.
    """
    cyan, magenta, yellow, black = image.split()
    planes = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    # Pillow inverts everything that it writes, and converts nothing.
    made = cmyk_jpeg(Image.merge("CMYK", (*(plane.point(_inverse) for plane in planes), black)))
    at = made.index(b"Adobe") + 11
    assert made[at] == 0
    return made[:at] + b"\x02" + made[at + 1 :]


def _inverse(value: int) -> int:
    return 255 - value


def png_16_bit(colour: bool = False) -> bytes:
    """A ramp from black to white with more than 256 shades; in color, green is reversed."""
    ramp = np.linspace(0, 65535, 256).round().astype(">u2")
    row = np.stack([ramp, ramp[::-1], ramp], -1) if colour else ramp
    lines = (b"\0" + row.tobytes()) * 64
    return png(256, 64, 16, 2 if colour else 0, zlib.compress(lines))


def png(width: int, height: int, bits: int, colour_type: int, data: bytes) -> bytes:
    """A PNG with this header and these packed rows, even if they do not match."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def transparent_palette_png() -> bytes:
    """Half of it is a fully transparent color; a quarter is half transparent."""
    image = Image.new("P", (80, 80), 0)
    image.putpalette([200, 40, 40, 40, 200, 40, 0, 0, 255])
    ImageDraw.Draw(image).rectangle((0, 40, 79, 79), fill=1)
    ImageDraw.Draw(image).rectangle((40, 0, 79, 39), fill=2)
    return encoded(image, "png", transparency=bytes([255, 0, 128]))


def animation(kind: str, frames: int = 3, size: tuple[int, int] = (64, 48)) -> bytes:
    """The first frame is red."""
    colours = [(255, 0, 0), (0, 0, 255), (0, 255, 0)]
    images = [Image.new("RGB", size, colours[at % 3]) for at in range(frames)]
    for at, image in enumerate(images):  # otherwise equal frames would be merged
        image.putpixel((at % size[0], at // size[0] % size[1]), (1, 2, 3))
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    return encoded(images[0], kind, save_all=True, append_images=images[1:], duration=40, **options)
