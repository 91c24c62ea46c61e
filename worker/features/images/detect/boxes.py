"""Boxes around what was found: put back from the square, thinned out, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
from PIL import Image

from common.contracts.images import DetectionField, DetectionKind

#: Two boxes that share more of their common area than this are one find.
OVERLAP_THRESHOLD: Final = 0.3


class Box(NamedTuple):
    """A find: corners in pixels of whatever was looked at."""

    left: float
    top: float
    right: float
    bottom: float
    score: float

    @property
    def area(self) -> float:
        """Its size; 0 for one that is inside out."""
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)


class Detection(NamedTuple):
    """A find in an image, in whole pixels of it."""

    kind: DetectionKind
    x: int
    y: int
    width: int
    height: int
    score: float

    def to_json(self) -> dict[str, Any]:
        return {
            DetectionField.KIND: self.kind.value,
            DetectionField.X: self.x,
            DetectionField.Y: self.y,
            DetectionField.WIDTH: self.width,
            DetectionField.HEIGHT: self.height,
            DetectionField.SCORE: round(self.score, 3),
        }


def overlap(one: Box, other: Box) -> float:
    """Common area by joint area, from 0 to 1."""
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    common = max(0.0, width) * max(0.0, height)
    joint = one.area + other.area - common
    return common / joint if joint > 0 else 0.0


def suppress_overlaps(boxes: Sequence[Box], most: int) -> list[Box]:
    """The best of those that are about the same thing, best first; so many at most."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda each: (-each.score, each)):
        if len(kept) == most:
            break
        if box.area > 0 and all(overlap(box, other) <= OVERLAP_THRESHOLD for other in kept):
            kept.append(box)
    return kept


def to_detections(
    boxes: Sequence[Box], scale: float, size: tuple[int, int], kind: DetectionKind
) -> list[Detection]:
    """Boxes of a picture that was made `scale` times as large, in pixels of the image itself."""
    width, height = size
    found = []
    for box in boxes:
        left, top = max(0, round(box.left / scale)), max(0, round(box.top / scale))
        right, bottom = min(width, round(box.right / scale)), min(height, round(box.bottom / scale))
        if right > left and bottom > top:
            found.append(Detection(kind, left, top, right - left, bottom - top, float(box.score)))
    return found


Pixels = numpy.ndarray[Any, Any]

#: Small images are made so much larger at most: more shows no more.
MOST_UPSCALE: Final = 2.0


class SquareImage(NamedTuple):
    """The picture, `size` by `size` by RGB, with the image in its upper left corner."""

    pixels: Pixels
    #: How many times as large the image is in it.
    scale: float


def letterbox(image: Image.Image, size: int) -> SquareImage:
    """What is visible of an image (on white, where it is transparent) in a square."""
    scale = min(size / max(image.size), MOST_UPSCALE)
    width, height = (max(1, min(size, round(side * scale))) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    if small.mode != "RGB":
        visible = Image.new("RGB", small.size, "white")
        with_alpha = small.convert("RGBA")
        visible.paste(with_alpha, mask=with_alpha.getchannel("A"))
        small = visible
    pixels = numpy.zeros((size, size, 3), numpy.uint8)
    pixels[:height, :width] = numpy.asarray(small)
    return SquareImage(pixels, scale)
