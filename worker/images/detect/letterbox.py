"""An image as models look at it: within one square, always of the same size.

A net that is given pictures of changing shapes answers nonsense in OpenCV 4 (its buffers keep the
former shape); within one square it never sees another shape.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy
from PIL import Image

Pixels = numpy.ndarray[Any, Any]

#: Small images are made so much larger at most: more shows no more.
MOST_ENLARGED: Final = 2.0


class Square(NamedTuple):
    """The picture, `size` by `size` by RGB, with the image in its upper left corner."""

    pixels: Pixels
    #: How many times as large the image is in it.
    scale: float


def letterbox(image: Image.Image, size: int) -> Square:
    """What is visible of an image (on white, where it is transparent) in a square."""
    scale = min(size / max(image.size), MOST_ENLARGED)
    width, height = (max(1, min(size, round(side * scale))) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    if small.mode != "RGB":
        visible = Image.new("RGB", small.size, "white")
        with_alpha = small.convert("RGBA")
        visible.paste(with_alpha, mask=with_alpha.getchannel("A"))
        small = visible
    pixels = numpy.zeros((size, size, 3), numpy.uint8)
    pixels[:height, :width] = numpy.asarray(small)
    return Square(pixels, scale)
