"""Decodes a file into upright sRGB pixels of the target size.

The order saves most of the work: libjpeg decodes at a reduced size, and colour and orientation are
corrected after the image has been shrunk.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from PIL import AvifImagePlugin, ExifTags, Image, ImageFile, PngImagePlugin

from sluice.common.contracts.images import ErrorCode, FailureReason
from sluice.worker.features.images.pixels.color import (
    clean_alpha,
    profile_from_codes,
    to_plain_mode,
    to_srgb,
)
from sluice.worker.features.images.pixels.formats import (
    FORMATS,
    HEAD_BYTES,
    gif_frames,
    heif_size,
    webp_is_complete,
    webp_size,
)
from sluice.worker.features.images.pixels.types import ImageLimits, InvalidImage, invalid_image

#: Limit of an unpacked colour profile in a PNG. (Pillow's default is 1 MB; profiles of printers are
#: larger.)
MOST_PROFILE_BYTES: Final = 4 * 1024 * 1024


@contextmanager
def strict_pillow(max_pixels: int) -> Iterator[None]:
    """Strict Pillow: too many pixels and truncated files are errors, and AVIF uses one thread.

    Other warnings concern metadata that is not used; they are ignored.
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


#: Limit of an animation. Only the first frame is used, but decoding a header may visit all frames.
MOST_FRAMES: Final = 60
#: Most pixels along one side of an upload; JPEG's limit.
MOST_SIDE: Final = 65_535
#: Formats in which several images are an animation; in others they are pages or depth maps.
_ANIMATED: Final = frozenset({"png", "webp", "gif", "avif"})


class OpenedImage(NamedTuple):
    """An image whose header has been read."""

    image: Image.Image
    #: Key of `formats.FORMATS`.
    format: str
    frames: int


@contextmanager
def open_image(path: str, format: str, max_pixels: int) -> Iterator[OpenedImage]:
    """Open a file of that format, in strict mode. Raises InvalidImage."""
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
    """Number of frames if the header has it, else 0. Raises InvalidImage."""
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
    """Pillow supports HEIC only through an additional package."""
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)


#: Most pixels along one side of a WebP.
MOST_WEBP_SIDE: Final = 16_383
#: Operation for each EXIF orientation; 1 needs none.
_TRANSPOSE_BY_ORIENTATION: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
#: Orientations from this one on swap width and height.
_FIRST_SIDEWAYS: Final = 5
#: Above this reduction a simple average comes first (see `Image.resize`).
_REDUCING_GAP: Final = 2.0


class DecodedImage(NamedTuple):
    """An image ready for detection and encoding."""

    image: Image.Image
    #: Size of the upload after rotation.
    width: int
    height: int
    frames: int


def decode(path: str, format: str, limits: ImageLimits) -> DecodedImage:
    """Decode a file of that format; an animation gives its first frame. Raises InvalidImage."""
    try:
        with open_image(path, format, limits.max_pixels) as found:
            return _decode(path, found, limits.max_width)
    except (InvalidImage, MemoryError):
        raise
    except Exception as error:  # decoders raise any kind of exception
        is_cut_off = isinstance(error, EOFError) or "truncated" in str(error).lower()
        reason = FailureReason.TRUNCATED if is_cut_off else FailureReason.DAMAGED
        raise invalid_image(ErrorCode.DECODE_FAILED, reason, error) from None


def target_size(width: int, height: int, max_width: int) -> tuple[int, int]:
    """Output size: at most `max_width` wide, within WebP's limit of height, never enlarged."""
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
    if found.format == "jpeg":  # a JPEG has its metadata first; other formats may have it last
        turn = _orientation(image)
        image.draft(
            image.mode,
            _swap_if_sideways(target_size(*_swap_if_sideways(original, turn), max_width), turn),
        )
    image.load()
    if found.format != "jpeg":
        turn = _orientation(image)  # 1 if the library has rotated it
        original = image.size
        profile = image.info.get("icc_profile") or profile_from_codes(path, found.format)
    width, height = _swap_if_sideways(original, turn)
    target = _swap_if_sideways(target_size(width, height, max_width), turn)
    pixels = to_plain_mode(image)
    if pixels.size != target:
        pixels = pixels.resize(target, Image.Resampling.LANCZOS, reducing_gap=_REDUCING_GAP)
    pixels = clean_alpha(to_srgb(pixels, profile))
    if turn in _TRANSPOSE_BY_ORIENTATION:
        pixels = pixels.transpose(_TRANSPOSE_BY_ORIENTATION[turn])
    return DecodedImage(pixels, width, height, found.frames)


def _swap_if_sideways(size: tuple[int, int], turn: int) -> tuple[int, int]:
    """Swap width and height if the orientation does."""
    return (size[1], size[0]) if turn >= _FIRST_SIDEWAYS else size


def _orientation(image: Image.Image) -> int:
    """Orientation from EXIF or XMP; 1 if neither is valid."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # damaged metadata is ignored
        return 1
    return found if isinstance(found, int) and found in _TRANSPOSE_BY_ORIENTATION else 1
