"""Faces by YuNet, which OpenCV knows how to ask."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from worker.images.detect.boxes import SAME_FROM, Box
from worker.images.detect.letterbox import Pixels
from worker.images.detect.nets import ModelUnusable, cv2

LEAST_SCORE: Final = 0.5
_MOST: Final = 1000


@lru_cache(maxsize=2)
def _detector(path: str, size: int) -> Any:
    opencv = cv2()
    try:
        return opencv.FaceDetectorYN.create(path, "", (size, size), LEAST_SCORE, SAME_FROM, _MOST)
    except opencv.error as error:
        raise _unusable(path, error) from None


def find(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of faces in a square."""
    opencv = cv2()
    try:
        _, found = _detector(path, pixels.shape[0]).detect(pixels[:, :, ::-1].copy())
    except opencv.error as error:
        raise _unusable(path, error) from None
    return [
        Box(float(x), float(y), float(x + width), float(y + height), float(score))
        for x, y, width, height, *_, score in (() if found is None else found)
    ]


def _unusable(path: str, error: Exception) -> ModelUnusable:
    words = " ".join(str(error).split())[:300]
    return ModelUnusable(f"{path} is no YuNet model that OpenCV can ask: {words}")
