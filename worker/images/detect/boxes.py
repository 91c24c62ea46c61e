"""Boxes around what was found: put back from the square, thinned out, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from common.contracts.images import DetectionField, DetectionKind

#: Two boxes that share more of their common area than this are one find.
SAME_FROM: Final = 0.3


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

    def told(self) -> dict[str, Any]:
        """As a record has it."""
        return {
            DetectionField.KIND.value: self.kind.value,
            DetectionField.X.value: self.x,
            DetectionField.Y.value: self.y,
            DetectionField.WIDTH.value: self.width,
            DetectionField.HEIGHT.value: self.height,
            DetectionField.SCORE.value: round(self.score, 3),
        }


def overlap(one: Box, other: Box) -> float:
    """Common area by joint area, from 0 to 1."""
    width = min(one.right, other.right) - max(one.left, other.left)
    height = min(one.bottom, other.bottom) - max(one.top, other.top)
    common = max(0.0, width) * max(0.0, height)
    joint = one.area + other.area - common
    return common / joint if joint > 0 else 0.0


def thinned(boxes: Sequence[Box], most: int) -> list[Box]:
    """The best of those that are about the same thing, best first; so many at most."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda each: (-each.score, each)):
        if len(kept) == most:
            break
        if box.area > 0 and all(overlap(box, other) <= SAME_FROM for other in kept):
            kept.append(box)
    return kept


def placed(
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
