"""Converts any pixel format to RGB or RGBA in sRGB."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import IO, Any, Final, NamedTuple

from PIL import Image, ImageChops, ImageCms

from sluice.common.contracts.images import ErrorCode, FailureReason
from sluice.worker.features.images.pixels.types import invalid_image

#: Modes in which an image can be resized and from which a profile leads to sRGB.
PLAIN_MODES: Final = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
#: Other modes and their equivalent plain modes.
_PLAIN_MODE_OF: Final = {
    "1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA", "RGBX": "RGB", "YCbCr": "RGB",
    "HSV": "RGB",
}  # fmt: skip
#: Colour spaces of profiles.
_RGB, _GRAY, _CMYK = "RGB", "GRAY", "CMYK"
#: A difference that is not visible.
_INVISIBLE_DIFFERENCE: Final = 1


def to_plain_mode(image: Image.Image) -> Image.Image:
    """Convert to one of the plain modes. Raises InvalidImage for unsupported modes."""
    if "transparency" in image.info and image.mode in ("1", "L", "RGB"):
        return image.convert("RGBA")  # one colour is declared transparent
    if image.mode == "P":
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode.startswith("I"):
        return _to_8_bit(image)
    if image.mode in _PLAIN_MODE_OF:
        return image.convert(_PLAIN_MODE_OF[image.mode])
    if image.mode in PLAIN_MODES:
        return image
    raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.UNSUPPORTED_COLOR_MODE)


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Convert a plain image to sRGB, as RGB or RGBA; may return the same object.

    A broken profile, or one for another kind of image, is ignored.
    """
    if profile:
        try:
            return _apply_profile(image, profile)
        except MemoryError:
            raise
        except Exception:  # any defect of the profile
            pass
    if image.mode in ("RGB", "RGBA"):
        return image
    return image.convert("RGBA" if image.mode == "LA" else "RGB")


def clean_alpha(image: Image.Image) -> Image.Image:
    """Drop a fully opaque alpha channel, and clear the colours of transparent pixels.

    A user may have hidden content by making it transparent; its colours would otherwise remain.
    """
    if image.mode != "RGBA":
        return image
    alpha = image.getchannel("A")
    lowest, _ = alpha.getextrema()
    if lowest == 255:
        return image.convert("RGB")
    if lowest == 0:
        image.paste((0, 0, 0, 0), None, alpha.point(lambda value: 0 if value else 255))
    return image


def _to_8_bit(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey (some formats store it in 32 bits) to 8 bits."""
    if image.mode == "I":
        lowest, highest = image.getextrema()
        if lowest < 0 or highest > 0xFFFF:  # type: ignore[operator]
            raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.UNSUPPORTED_COLOR_MODE)
    else:
        image = image.convert("I")
    return image.point(_shades(), "L")


@cache
def _shades() -> list[int]:
    """Table from 16-bit to 8-bit grey."""
    return [round(value / 257) for value in range(0x10000)]


def _apply_profile(image: Image.Image, raw: bytes) -> Image.Image:
    profile = ImageCms.ImageCmsProfile(io.BytesIO(raw))
    space = profile.profile.xcolor_space.strip()
    if space == _CMYK and image.mode == _CMYK:
        return _transform(image, profile, _CMYK, _RGB)
    if space == _GRAY and image.mode in ("L", "LA"):
        grey = image.getchannel(0) if image.mode == "LA" else image
        converted = _transform(grey, profile, "L", _RGB)
        if image.mode == "LA":
            converted.putalpha(image.getchannel(1))
        return converted
    if space == _RGB and image.mode != _CMYK:
        if image.mode in ("L", "LA"):
            image = image.convert("RGBA" if image.mode == "LA" else "RGB")
        return _convert_rgb(image, profile)
    raise ValueError(f"a profile of {space} for an image of {image.mode}")


def _convert_rgb(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    """Apply an RGB profile.

    Most profiles are a version of sRGB; then the image is returned as it is.
    """
    tried = _transform(_samples().copy(), profile, _RGB, _RGB)
    changes: Any = ImageChops.difference(tried, _samples()).getextrema()
    if max(highest for _, highest in changes) <= _INVISIBLE_DIFFERENCE:
        return image
    return _transform(image, profile, image.mode, image.mode)


def _transform(
    image: Image.Image, profile: ImageCms.ImageCmsProfile, source: str, target: str
) -> Image.Image:
    transform = ImageCms.buildTransform(
        profile,
        _srgb_profile(),
        source,
        target,
        ImageCms.Intent.PERCEPTUAL,
        ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    converted = ImageCms.applyTransform(image, transform, inPlace=source == target)
    return image if converted is None else converted


@cache
def _srgb_profile() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


@cache
def _samples() -> Image.Image:
    """Colours evenly spread over the space, one pixel each."""
    steps = (0, 32, 64, 96, 128, 160, 192, 224, 255)
    colours = bytes(part for r in steps for g in steps for b in steps for part in (r, g, b))
    return Image.frombytes("RGB", (27, 27), colours)


Columns = tuple[tuple[float, float, float], ...]

#: Red, green and blue primaries in XYZ, relative to the white point of profiles (D50).
_IN_XYZ: Final[dict[int, Columns]] = {
    9: ((0.67346, 0.27904, -0.00193), (0.16568, 0.67535, 0.02998), (0.12505, 0.04561, 0.79686)),
    12: ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407)),
}
#: Transfer functions that are sRGB's or close to it; 2 means unspecified.
_SRGB_LIKE_TRANSFERS: Final = frozenset({1, 2, 6, 13, 14, 15})
#: Parameters of the sRGB transfer function, in the order of a profile's parametric curve.
_SRGB_CURVE: Final = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
_D50: Final = (0.96420, 1.0, 0.82491)
#: Start of the box with colour codes in AVIF and HEIC files, and the bytes searched for it.
_NCLX_BOX: Final = b"colrnclx"
_MOST_HEAD_BYTES: Final = 1024 * 1024


class ColorCodes(NamedTuple):
    """Colour description of a file (CICP code points)."""

    primaries: int
    transfer: int


def profile_from_codes(path: str, format: str) -> bytes | None:
    """Profile for a file that has only colour codes; None if it has none or they mean sRGB."""
    with open(path, "rb") as file:
        if format in ("avif", "heic"):
            codes = _read_nclx_box(file.read(_MOST_HEAD_BYTES))
        elif format == "png":
            codes = _read_cicp_chunk(file)
        else:
            return None
    if (
        codes is None
        or codes.transfer not in _SRGB_LIKE_TRANSFERS
        or codes.primaries not in _IN_XYZ
    ):
        return None
    return _profile(codes.primaries)


def _read_nclx_box(head: bytes) -> ColorCodes | None:
    at = head.find(_NCLX_BOX)
    numbers = head[at + 8 : at + 12]
    if at < 0 or len(numbers) < 4:
        return None
    return ColorCodes(*struct.unpack(">HH", numbers))


def _read_cicp_chunk(file: IO[bytes]) -> ColorCodes | None:
    """The chunk must precede the pixels."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        if name == b"cICP" and length == 4:
            numbers = file.read(2)
            return ColorCodes(*numbers) if len(numbers) == 2 else None
        if name in (b"IDAT", b"IEND"):
            break
        file.seek(length + 4, 1)
    return None


@cache
def _profile(primaries: int) -> bytes:
    """A minimal ICC profile with these primaries and the sRGB curve."""
    curve = b"para\0\0\0\0" + struct.pack(">HH5i", 3, 0, *map(_fixed, _SRGB_CURVE))
    tags = {b"wtpt": _xyz(_D50)}
    for letter, column in zip((b"r", b"g", b"b"), _IN_XYZ[primaries]):
        tags[letter + b"XYZ"] = _xyz(column)
        tags[letter + b"TRC"] = curve
    index, body = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        index += name + struct.pack(">II", start + len(body), len(content))
        body += content
    head = struct.pack(
        ">I4xI4s4s4s12x4s28x3i48x",
        start + len(body), 0x04200000, b"mntr", b"RGB ", b"XYZ ", b"acsp", *map(_fixed, _D50),
    )  # fmt: skip
    return head + struct.pack(">I", len(tags)) + index + body


def _xyz(values: tuple[float, float, float]) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *map(_fixed, values))


def _fixed(value: float) -> int:
    return round(value * 65536)
