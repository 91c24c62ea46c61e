"""A file into pixels: upright, small enough, sRGB.

The order of things saves most of the work: libjpeg decodes to what is just big enough, and colours
and orientation are put right when the image is small.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from PIL import AvifImagePlugin, ExifTags, Image, ImageFile, PngImagePlugin

from common.contracts.images import ErrorCode, FailureReason
from worker.features.images.pixels.color import (
    clean_alpha,
    profile_from_codes,
    to_plain_mode,
    to_srgb,
)
from worker.features.images.pixels.formats import (
    FORMATS,
    HEAD_BYTES,
    gif_frames,
    heif_size,
    webp_is_complete,
    webp_size,
)
from worker.features.images.pixels.types import ImageLimits, InvalidImage, invalid_image

#: Bytes of a colour profile in a PNG, unpacked. (Pillow's own bound is 1 MB, printers' have more.)
MOST_PROFILE_BYTES: Final = 4 * 1024 * 1024


@contextmanager
def strict_pillow(max_pixels: int) -> Iterator[None]:
    """Within: more pixels are an error and no warning, half a file is none, one thread is enough.

    Other warnings are about metadata that nobody wants.
    """
    before = (
        Image.MAX_IMAGE_PIXELS,
        ImageFile.LOAD_TRUNCATED_IMAGES,
        PngImagePlugin.MAX_TEXT_CHUNK,
        AvifImagePlugin.DEFAULT_MAX_THREADS,
    )
    _set_pillow_limits(max_pixels, False, MOST_PROFILE_BYTES, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        _set_pillow_limits(*before)


def _set_pillow_limits(
    max_pixels: int | None, truncated: bool, text_bytes: int, threads: int
) -> None:
    Image.MAX_IMAGE_PIXELS = max_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = truncated
    PngImagePlugin.MAX_TEXT_CHUNK = text_bytes
    AvifImagePlugin.DEFAULT_MAX_THREADS = threads


#: Frames of an animation, though only the first is taken: more is meant to keep somebody busy.
MOST_FRAMES: Final = 60
#: Pixels along one side of what is uploaded, as JPEG has it.
MOST_SIDE: Final = 65_535
#: Formats that are animations if they have more than one image; others have pages, or depths.
_ANIMATED: Final = frozenset({"png", "webp", "gif", "avif"})


class OpenedImage(NamedTuple):
    """An image of which the header is known."""

    image: Image.Image
    #: As in `formats.FORMATS`.
    format: str
    frames: int


@contextmanager
def open_image(path: str, format: str, max_pixels: int) -> Iterator[OpenedImage]:
    """The image in a file of that format, within Pillow's strictness. Raises Refused."""
    with strict_pillow(max_pixels):
        try:
            frames = _check_header(path, format, max_pixels)
            if format == "heic":
                _register_heic()
            with Image.open(path, formats=[FORMATS[format].plugin]) as image:
                _check_size(image.size, max_pixels)
                if format in _ANIMATED and not frames:
                    frames = getattr(image, "n_frames", 1)
                if frames > MOST_FRAMES:
                    raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.TOO_MANY_FRAMES)
                yield OpenedImage(image, format, frames or 1)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            raise invalid_image(
                ErrorCode.DECODE_FAILED, FailureReason.DIMENSIONS_EXCEED_LIMIT
            ) from None


def _check_header(path: str, format: str, max_pixels: int) -> int:
    """How many frames there are, if that is known without the library; 0 if not."""
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if format == "gif":
            return gif_frames(file, MOST_FRAMES)
        if format == "webp":
            head = file.read(HEAD_BYTES)
            _check_size(webp_size(head) or (1, 1), max_pixels)
            if not webp_is_complete(head, size_bytes):
                raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.TRUNCATED)
        elif format in ("avif", "heic"):
            size = heif_size(file, size_bytes)
            if size is None:
                raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.TRUNCATED)
            _check_size(size, max_pixels)
    return 0


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels or max(size) > MOST_SIDE:
        raise invalid_image(ErrorCode.DECODE_FAILED, FailureReason.DIMENSIONS_EXCEED_LIMIT)


def _register_heic() -> None:
    """Pillow knows HEIC by a package of its own only."""
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)


#: Pixels along one side of a WebP.
MOST_WEBP_SIDE: Final = 16_383
#: What EXIF's orientation asks to be done; 1 asks for nothing.
_TRANSPOSE_BY_ORIENTATION: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Orientations that lay the image on its side, from here on.
_FIRST_SIDEWAYS: Final = 5
#: So much smaller at least, a simple average is made first.
_REDUCING_GAP: Final = 2.0


class DecodedImage(NamedTuple):
    """An image that can be looked at and encoded."""

    image: Image.Image
    #: Of the upload, upright.
    width: int
    height: int
    frames: int


def decode(path: str, format: str, limits: ImageLimits) -> DecodedImage:
    """The image in a file of that format; the first one of an animation. Raises Refused."""
    try:
        with open_image(path, format, limits.max_pixels) as found:
            return _decode(path, found, limits.max_width)
    except (InvalidImage, MemoryError):
        raise
    except Exception as error:  # decoders raise all kinds of things
        is_cut_off = isinstance(error, EOFError) or "truncated" in str(error).lower()
        reason = FailureReason.TRUNCATED if is_cut_off else FailureReason.DAMAGED
        raise invalid_image(ErrorCode.DECODE_FAILED, reason, error) from None


def target_size(width: int, height: int, max_width: int) -> tuple[int, int]:
    """How big an image becomes: no wider than that, no higher than a WebP can be, never bigger."""
    if width > max_width:
        width, height = max_width, max(1, round(height * max_width / width))
    if height > MOST_WEBP_SIDE:
        width, height = max(1, round(width * MOST_WEBP_SIDE / height)), MOST_WEBP_SIDE
    return width, height


def _decode(path: str, found: OpenedImage, max_width: int) -> DecodedImage:
    image = found.image
    profile = image.info.get("icc_profile")
    turn = 1
    original = image.size
    if found.format == "jpeg":  # its metadata comes first; that of others may come last
        turn = _orientation(image)
        image.draft(
            image.mode,
            _swap_if_sideways(target_size(*_swap_if_sideways(original, turn), max_width), turn),
        )
    image.load()
    if found.format != "jpeg":
        turn = _orientation(image)  # 1 where the library has turned it
        original = image.size
        profile = image.info.get("icc_profile") or profile_from_codes(path, found.format)
    width, height = _swap_if_sideways(original, turn)
    wanted = _swap_if_sideways(target_size(width, height, max_width), turn)
    pixels = to_plain_mode(image)
    if pixels.size != wanted:
        pixels = pixels.resize(wanted, Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP)
    pixels = clean_alpha(to_srgb(pixels, profile))
    if turn in _TRANSPOSE_BY_ORIENTATION:
        pixels = pixels.transpose(_TRANSPOSE_BY_ORIENTATION[turn])
    return DecodedImage(pixels, width, height, found.frames)


def _swap_if_sideways(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """A size before an image is turned, from the one after; and the other way round."""
    return (size[1], size[0]) if turn >= _FIRST_SIDEWAYS else size


def _orientation(image: Image.Image) -> int:
    """What EXIF says, or XMP in its place; 1 where neither makes sense."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # nobody needs it
        return 1
    return found if isinstance(found, int) and found in _TRANSPOSE_BY_ORIENTATION else 1
