"""Bounding boxes: scaled back from the square, deduplicated, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
from PIL import Image

from sluice.common.contracts.images import DetectionField, DetectionKind

#: Boxes with a higher intersection over union are the same object.
OVERLAP_THRESHOLD: Final = 0.3


class Box(NamedTuple):
    """A detection: corners in pixels of the input square."""

    left: float
    top: float
    right: float
    bottom: float
    score: float

    @property
    def area(self) -> float:
        """Area in pixels; 0 if the corners are inverted."""
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)


class Detection(NamedTuple):
    """A detection in pixels of the image."""

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
    """Intersection over union, from 0 to 1."""
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    common = max(0.0, width) * max(0.0, height)
    joint = one.area + other.area - common
    return common / joint if joint > 0 else 0.0


def suppress_overlaps(boxes: Sequence[Box], most: int) -> list[Box]:
    """Non-maximum suppression: the best of overlapping boxes, best first, `most` at most."""
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
    """Convert boxes found at `scale` into pixels of the image itself."""
    width, height = size
    found = []
    for box in boxes:
        left, top = max(0, round(box.left / scale)), max(0, round(box.top / scale))
        right, bottom = min(width, round(box.right / scale)), min(height, round(box.bottom / scale))
        if right > left and bottom > top:
            found.append(Detection(kind, left, top, right - left, bottom - top, float(box.score)))
    return found


Pixels = numpy.ndarray[Any, Any]

#: Small images are enlarged by this factor at most; more adds no detail.
MOST_UPSCALE: Final = 2.0


class SquareImage(NamedTuple):
    """`size` x `size` RGB pixels with the image in the upper left corner."""

    pixels: Pixels
    #: Factor by which the image was scaled.
    scale: float


def letterbox(image: Image.Image, size: int) -> SquareImage:
    """Fit an image into a square; transparent pixels become white."""
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
