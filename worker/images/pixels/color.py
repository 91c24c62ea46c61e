"""Any kind of pixels into RGB or RGBA, as an sRGB screen shows them."""

from __future__ import annotations

import io
from functools import cache
from typing import Any, Final

from PIL import Image, ImageChops, ImageCms

from common.contracts.images import ErrorCode, Reason
from worker.images.pixels.order import refused

#: Kinds in which an image can be made smaller, and from which a profile leads to sRGB.
PLAIN: Final = frozenset({"L", "LA", "RGB", "RGBA", "CMYK"})
#: Other kinds, and the plain ones that have the same.
_SIMPLER: Final = {
    "1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA", "RGBX": "RGB", "YCbCr": "RGB",
    "HSV": "RGB",
}  # fmt: skip
#: Colour spaces of profiles, and the kind of image that each is for.
_RGB, _GRAY, _CMYK = "RGB", "GRAY", "CMYK"
#: A difference that nobody sees.
_UNSEEN: Final = 1


def plain(image: Image.Image) -> Image.Image:
    """The same image in one of the plain kinds. Raises Refused."""
    if "transparency" in image.info and image.mode in ("1", "L", "RGB"):
        return image.convert("RGBA")  # one colour stands for nothing
    if image.mode == "P":
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode.startswith("I"):
        return _shortened(image)
    if image.mode in _SIMPLER:
        return image.convert(_SIMPLER[image.mode])
    if image.mode in PLAIN:
        return image
    raise refused(ErrorCode.DECODE_FAILED, Reason.UNSUPPORTED_COLOR_MODE)


def srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """A plain image in sRGB, RGB or RGBA; may be the same one. A profile that is broken, or of
    another kind of image, counts for nothing."""
    if profile:
        try:
            return _by_profile(image, profile)
        except MemoryError:
            raise
        except Exception:  # whatever is wrong with it
            pass
    if image.mode in ("RGB", "RGBA"):
        return image
    return image.convert("RGBA" if image.mode == "LA" else "RGB")


def with_honest_alpha(image: Image.Image) -> Image.Image:
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


def _shortened(image: Image.Image) -> Image.Image:
    """Grey with 16 bits (some formats keep that in 32), with 8."""
    if image.mode == "I":
        lowest, highest = image.getextrema()
        if lowest < 0 or highest > 0xFFFF:  # type: ignore[operator]
            raise refused(ErrorCode.DECODE_FAILED, Reason.UNSUPPORTED_COLOR_MODE)
    else:
        image = image.convert("I")
    return image.point(_shades(), "L")


@cache
def _shades() -> list[int]:
    """Of 16 bits, the 8 that are nearest."""
    return [round(value / 257) for value in range(0x10000)]


def _by_profile(image: Image.Image, raw: bytes) -> Image.Image:
    profile = ImageCms.ImageCmsProfile(io.BytesIO(raw))
    space = profile.profile.xcolor_space.strip()
    if space == _CMYK and image.mode == _CMYK:
        return _transformed(image, profile, _CMYK, _RGB)
    if space == _GRAY and image.mode in ("L", "LA"):
        grey = image.getchannel(0) if image.mode == "LA" else image
        made = _transformed(grey, profile, "L", _RGB)
        if image.mode == "LA":
            made.putalpha(image.getchannel(1))
        return made
    if space == _RGB and image.mode != _CMYK:
        if image.mode in ("L", "LA"):
            image = image.convert("RGBA" if image.mode == "LA" else "RGB")
        return _within_rgb(image, profile)
    raise ValueError(f"a profile of {space} for an image of {image.mode}")


def _within_rgb(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    """Most profiles are some version of sRGB itself: then there is nothing to do."""
    tried = _transformed(_samples().copy(), profile, _RGB, _RGB)
    changes: Any = ImageChops.difference(tried, _samples()).getextrema()
    if max(highest for _, highest in changes) <= _UNSEEN:
        return image
    return _transformed(image, profile, image.mode, image.mode)


def _transformed(
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
