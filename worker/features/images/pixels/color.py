"""Any kind of pixels into RGB or RGBA, as an sRGB screen shows them."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import IO, Any, Final, NamedTuple

from PIL import Image, ImageChops, ImageCms

from common.contracts.images import ErrorCode, FailureReason
from worker.features.images.pixels.types import invalid_image

#: Kinds in which an image can be made smaller, and from which a profile leads to sRGB.
PLAIN_MODES: Final = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
#: Other kinds, and the plain ones that have the same.
_PLAIN_MODE_OF: Final = {
    "1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA", "RGBX": "RGB", "YCbCr": "RGB",
    "HSV": "RGB",
}  # fmt: skip
#: Colour spaces of profiles, and the kind of image that each is for.
_RGB, _GRAY, _CMYK = "RGB", "GRAY", "CMYK"
#: A difference that nobody sees.
_INVISIBLE_DIFFERENCE: Final = 1


def to_plain_mode(image: Image.Image) -> Image.Image:
    """The same image in one of the plain kinds. Raises Refused."""
    if "transparency" in image.info and image.mode in ("1", "L", "RGB"):
        return image.convert("RGBA")  # one colour stands for nothing
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
    """A plain image in sRGB, RGB or RGBA; may be the same one. A profile that is broken, or of
    another kind of image, counts for nothing."""
    if profile:
        try:
            return _apply_profile(image, profile)
        except MemoryError:
            raise
        except Exception:  # whatever is wrong with it
            pass
    if image.mode in ("RGB", "RGBA"):
        return image
    return image.convert("RGBA" if image.mode == "LA" else "RGB")


def clean_alpha(image: Image.Image) -> Image.Image:
    """RGB where nothing shows through; else no colours where nothing is to be seen.

    Somebody may have painted over something with transparency, and it would still be there.
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
    """Grey with 16 bits (some formats keep that in 32), with 8."""
    if image.mode == "I":
        lowest, highest = image.getextrema()
        if lowest < 0 or highest > 0xFFFF:  # type: ignore[operator]
            raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.UNSUPPORTED_COLOR_MODE)
    else:
        image = image.convert("I")
    return image.point(_shades(), "L")


@cache
def _shades() -> list[int]:
    """Of 16 bits, the 8 that are nearest."""
    return [round(value / 257) for value in range(0x10000)]


def _apply_profile(image: Image.Image, raw: bytes) -> Image.Image:
    profile = ImageCms.ImageCmsProfile(io.BytesIO(raw))
    space = profile.profile.xcolor_space.strip()
    if space == _CMYK and image.mode == _CMYK:
        return _transform(image, profile, _CMYK, _RGB)
    if space == _GRAY and image.mode in ("L", "LA"):
        grey = image.getchannel(0) if image.mode == "LA" else image
        made = _transform(grey, profile, "L", _RGB)
        if image.mode == "LA":
            made.putalpha(image.getchannel(1))
        return made
    if space == _RGB and image.mode != _CMYK:
        if image.mode in ("L", "LA"):
            image = image.convert("RGBA" if image.mode == "LA" else "RGB")
        return _convert_rgb(image, profile)
    raise ValueError(f"a profile of {space} for an image of {image.mode}")


def _convert_rgb(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    """Most profiles are some version of sRGB itself: then there is nothing to do."""
    tried = _transform(_samples().copy(), profile, _RGB, _RGB)
    changes: Any = ImageChops.difference(tried, _samples()).getextrema()
    if max(highest for _, highest in changes) <= _INVISIBLE_DIFFERENCE:
        return image
    return _transform(image, profile, image.mode, image.mode)


def _transform(
    image: Image.Image, profile: ImageCms.ImageCmsProfile, given: str, wanted: str
) -> Image.Image:
    transform = ImageCms.buildTransform(
        profile,
        _srgb_profile(),
        given,
        wanted,
        ImageCms.Intent.PERCEPTUAL,
        ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    made = ImageCms.applyTransform(image, transform, inPlace=given == wanted)
    return image if made is None else made


@cache
def _srgb_profile() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


@cache
def _samples() -> Image.Image:
    """Colours from all corners of the space, one pixel each."""
    steps = (0, 32, 64, 96, 128, 160, 192, 224, 255)
    colours = bytes(part for r in steps for g in steps for b in steps for part in (r, g, b))
    return Image.frombytes("RGB", (27, 27), colours)


Columns = tuple[tuple[float, float, float], ...]

#: Red, green and blue as XYZ, for the white that profiles are about (D50).
_IN_XYZ: Final[dict[int, Columns]] = {
    9: ((0.67346, 0.27904, -0.00193), (0.16568, 0.67535, 0.02998), (0.12505, 0.04561, 0.79686)),
    12: ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407)),
}
#: Transfers that look like sRGB's, or are it; 2 says nothing.
_SRGB_LIKE_TRANSFERS: Final = frozenset({1, 2, 6, 13, 14, 15})
#: Its exponent, and the rest of its formula, as a profile's parametric curve has them.
_SRGB_CURVE: Final = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
_D50: Final = (0.96420, 1.0, 0.82491)
#: Where boxes say it, and how a box that does goes on.
_NCLX_BOX: Final = b"colrnclx"
_MOST_HEAD_BYTES: Final = 1024 * 1024


class ColorCodes(NamedTuple):
    """What a file says of its colours."""

    primaries: int
    transfer: int


def profile_from_codes(path: str, format: str) -> bytes | None:
    """A profile for a file that only has numbers; None where it has none, or sRGB's."""
    with open(path, "rb") as file:
        if format in ("avif", "heic"):
            named = _read_nclx_box(file.read(_MOST_HEAD_BYTES))
        elif format == "png":
            named = _read_cicp_chunk(file)
        else:
            return None
    if (
        named is None
        or named.transfer not in _SRGB_LIKE_TRANSFERS
        or named.primaries not in _IN_XYZ
    ):
        return None
    return _profile(named.primaries)


def _read_nclx_box(head: bytes) -> ColorCodes | None:
    at = head.find(_NCLX_BOX)
    numbers = head[at + 8 : at + 12]
    if at < 0 or len(numbers) < 4:
        return None
    return ColorCodes(*struct.unpack(">HH", numbers))


def _read_cicp_chunk(file: IO[bytes]) -> ColorCodes | None:
    """It must stand before the pixels."""
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
    """The least that a colour library needs to know."""
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
