"""Faces by CenterFace: a heat map of their centres, with sizes and shifts."""

from __future__ import annotations

from typing import Final

import numpy

from worker.images.detect.boxes import Box
from worker.images.detect.letterbox import Pixels
from worker.images.detect.nets import ModelUnusable, outputs

#: Pixels of the square for each of the map.
STRIDE: Final = 4
#: From which heat on it is a face. Rather a vase blurred than a face missed.
LEAST_SCORE: Final = 0.25
#: The net's names of its outputs: heat, sizes (height, width), shifts (down, right), landmarks.
_OUTPUTS: Final = ["537", "538", "539", "540"]


def find(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of faces in a square; some of them about the same face."""
    found = outputs(path, pixels, 1.0, _OUTPUTS)[:3]
    side = pixels.shape[0] // STRIDE
    shapes = [tuple(part.shape) for part in found]
    if shapes != [(1, 1, side, side), (1, 2, side, side), (1, 2, side, side)]:
        raise ModelUnusable(f"{path} is no CenterFace model: its outputs are {shapes}")
    heat, sizes, shifts = (part[0] for part in found)
    rows, columns = numpy.nonzero(heat[0] > LEAST_SCORE)
    # Exponents are bounded: no face is larger than the picture.
    heights, widths = numpy.minimum(numpy.exp(sizes[:, rows, columns]) * STRIDE, pixels.shape[0])
    down, right = shifts[:, rows, columns]
    middle_y, middle_x = (rows + down + 0.5) * STRIDE, (columns + right + 0.5) * STRIDE
    return [
        Box(*map(float, each))
        for each in zip(
            middle_x - widths / 2,
            middle_y - heights / 2,
            middle_x + widths / 2,
            middle_y + heights / 2,
            heat[0, rows, columns],
        )
    ]
