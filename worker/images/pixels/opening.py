"""Opens an image by its header, and refuses it there if it is too big: nothing is decoded yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from PIL import Image

from common.contracts.images import ErrorCode, Reason
from worker.images.pixels.formats import FORMATS, HEAD_BYTES
from worker.images.pixels.headers import boxes_size, gif_frames, webp_is_whole, webp_size
from worker.images.pixels.order import refused
from worker.images.pixels.strictness import strictly

#: Frames of an animation, though only the first is taken: more is meant to keep somebody busy.
MOST_FRAMES: Final = 60
#: Pixels along one side of what is uploaded, as JPEG has it.
MOST_SIDE: Final = 65_535
#: Formats that are animations if they have more than one image; others have pages, or depths.
_ANIMATED: Final = frozenset({"png", "webp", "gif", "avif"})


class Opened(NamedTuple):
    """An image of which the header is known."""

    image: Image.Image
    #: As in `formats.FORMATS`.
    format: str
    frames: int


@contextmanager
def opened(path: str, format: str, max_pixels: int) -> Iterator[Opened]:
    """The image in a file of that format, within Pillow's strictness. Raises Refused."""
    with strictly(max_pixels):
        try:
            frames = _looked_at(path, format, max_pixels)
            if format == "heic":
                _learn_heic()
            with Image.open(path, formats=[FORMATS[format].plugin]) as image:
                _check_size(image.size, max_pixels)
                if format in _ANIMATED and not frames:
                    frames = getattr(image, "n_frames", 1)
                if frames > MOST_FRAMES:
                    raise refused(ErrorCode.DECODE_FAILED, Reason.TOO_MANY_FRAMES)
                yield Opened(image, format, frames or 1)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            raise refused(ErrorCode.DECODE_FAILED, Reason.DIMENSIONS_EXCEED_LIMIT) from None


def _looked_at(path: str, format: str, max_pixels: int) -> int:
    """How many frames there are, if that is known without the library; 0 if not."""
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if format == "gif":
            return gif_frames(file, MOST_FRAMES)
        if format == "webp":
            head = file.read(HEAD_BYTES)
            _check_size(webp_size(head) or (1, 1), max_pixels)
            if not webp_is_whole(head, size_bytes):
                raise refused(ErrorCode.DECODE_FAILED, Reason.TRUNCATED)
        elif format in ("avif", "heic"):
            size = boxes_size(file, size_bytes)
            if size is None:
                raise refused(ErrorCode.DECODE_FAILED, Reason.TRUNCATED)
            _check_size(size, max_pixels)
    return 0


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels or max(size) > MOST_SIDE:
        raise refused(ErrorCode.DECODE_FAILED, Reason.DIMENSIONS_EXCEED_LIMIT)


def _learn_heic() -> None:
    """Pillow knows HEIC by a package of its own only."""
    from pillow_heif import register_heif_opener

    register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
