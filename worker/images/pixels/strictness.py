"""Pillow as strict, and as modest, as we want it: its settings are a process's, not an image's."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from PIL import AvifImagePlugin, Image, ImageFile, PngImagePlugin

#: Bytes of a colour profile in a PNG, unpacked. (Pillow's own bound is 1 MB, printers' have more.)
MOST_PROFILE_BYTES: Final = 4 * 1024 * 1024


@contextmanager
def strictly(max_pixels: int) -> Iterator[None]:
    """Within: more pixels are an error and no warning, half a file is none, one thread is enough.

    Other warnings are about metadata that nobody wants.
    """
    before = (
        Image.MAX_IMAGE_PIXELS,
        ImageFile.LOAD_TRUNCATED_IMAGES,
        PngImagePlugin.MAX_TEXT_CHUNK,
        AvifImagePlugin.DEFAULT_MAX_THREADS,
    )
    _set(max_pixels, False, MOST_PROFILE_BYTES, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        _set(*before)


def _set(max_pixels: int | None, truncated: bool, text_bytes: int, threads: int) -> None:
    Image.MAX_IMAGE_PIXELS = max_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = truncated
    PngImagePlugin.MAX_TEXT_CHUNK = text_bytes
    AvifImagePlugin.DEFAULT_MAX_THREADS = threads
