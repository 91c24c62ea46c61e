"""A file into pixels: upright, small enough, sRGB.

The order of things saves most of the work: libjpeg decodes to what is just big enough, and colours
and orientation are put right when the image is small.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from PIL import ExifTags, Image

from common.contracts.images import ErrorCode, Reason
from worker.images.pixels.color import plain, srgb, with_honest_alpha
from worker.images.pixels.opening import Opened, opened
from worker.images.pixels.order import Limits, Refused, refused
from worker.images.pixels.primaries import profile_of

#: Pixels along one side of a WebP.
MOST_WEBP_SIDE: Final = 16_383
#: What EXIF's orientation asks to be done; 1 asks for nothing.
_TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Orientations that lay the image on its side, from here on.
_ON_ITS_SIDE: Final = 5
#: So much smaller at least, a simple average is made first.
_REDUCING_GAP: Final = 2.0


class Decoded(NamedTuple):
    """An image that can be looked at and encoded."""

    image: Image.Image
    #: Of the upload, upright.
    width: int
    height: int
    frames: int


def decode(path: str, format: str, limits: Limits) -> Decoded:
    """The image in a file of that format; the first one of an animation. Raises Refused."""
    try:
        with opened(path, format, limits.max_pixels) as found:
            return _decoded(path, found, limits.max_width)
    except (Refused, MemoryError):
        raise
    except Exception as error:  # decoders raise all kinds of things
        is_cut_off = isinstance(error, EOFError) or "truncated" in str(error).lower()
        reason = Reason.TRUNCATED if is_cut_off else Reason.DAMAGED
        raise refused(ErrorCode.DECODE_FAILED, reason, error) from None


def target_size(width: int, height: int, max_width: int) -> tuple[int, int]:
    """How big an image becomes: no wider than that, no higher than a WebP can be, never bigger."""
    if width > max_width:
        width, height = max_width, max(1, round(height * max_width / width))
    if height > MOST_WEBP_SIDE:
        width, height = max(1, round(width * MOST_WEBP_SIDE / height)), MOST_WEBP_SIDE
    return width, height


def _decoded(path: str, found: Opened, max_width: int) -> Decoded:
    image = found.image
    profile = image.info.get("icc_profile")
    turn = 1
    original = image.size
    if found.format == "jpeg":  # its metadata comes first; that of others may come last
        turn = _orientation(image)
        image.draft(image.mode, _lying(target_size(*_lying(original, turn), max_width), turn))
    image.load()
    if found.format != "jpeg":
        turn = _orientation(image)  # 1 where the library has turned it
        original = image.size
        profile = image.info.get("icc_profile") or profile_of(path, found.format)
    width, height = _lying(original, turn)
    wanted = _lying(target_size(width, height, max_width), turn)
    pixels = plain(image)
    if pixels.size != wanted:
        pixels = pixels.resize(wanted, Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP)
    pixels = with_honest_alpha(srgb(pixels, profile))
    if turn in _TURNS:
        pixels = pixels.transpose(_TURNS[turn])
    return Decoded(pixels, width, height, found.frames)


def _lying(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """A size before an image is turned, from the one after; and the other way round."""
    return (size[1], size[0]) if turn >= _ON_ITS_SIDE else size


def _orientation(image: Image.Image) -> int:
    """What EXIF says, or XMP in its place; 1 where neither makes sense."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # nobody needs it
        return 1
    return found if isinstance(found, int) and found in _TURNS else 1
