"""ONNX files as nets that look at a square. Each is read once a process and size."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from worker.images.detect.letterbox import Pixels


class ModelUnusable(Exception):
    """The file is no model, or not of the kind that it was said to be; the message says more."""


def cv2() -> Any:
    """OpenCV, with one thread: the pool has as many processes as there are cores."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


@lru_cache(maxsize=4)
def net_of(path: str, side: int) -> Any:
    """The net in a file, for squares of one size only: OpenCV 4 mixes up what it keeps of two."""
    opencv = cv2()
    try:
        return opencv.dnn.readNetFromONNX(path)
    except opencv.error as error:
        raise ModelUnusable(f"{path} is no ONNX model that OpenCV reads: {_words(error)}") from None


def outputs(path: str, pixels: Pixels, scale: float, names: list[str] | None = None) -> list[Any]:
    """What a net says about a square of RGB, multiplied by `scale`: its outputs, or those named."""
    opencv, net = cv2(), net_of(path, pixels.shape[0])
    try:
        net.setInput(opencv.dnn.blobFromImage(pixels, scale))
        found = net.forward(list(names or net.getUnconnectedOutLayersNames()))
    except opencv.error as error:
        side = pixels.shape[0]
        raise ModelUnusable(
            f"{path} cannot look at {side} x {side} pixels (IMAGE_DETECT_SIZE): {_words(error)}"
        ) from None
    return list(found)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
