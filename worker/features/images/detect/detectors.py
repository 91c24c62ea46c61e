"""Number plates by an operator's model, in one of the two forms that detectors are exported in.

Its input is `[1, 3, S, S]`, RGB from 0 to 1, where S is IMAGE_DETECT_SIZE. Its one output is either
`[1, N, 6]` (left, top, right, bottom, score, class: finds that are thinned out already) or
`[1, 4 + C, N]` (middle x, middle y, width, height, then a score for each of C classes), all in
pixels of the square. Whatever class it is, it is a plate.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy

from worker.features.images.detect.boxes import OVERLAP_THRESHOLD, Box, Pixels


class ModelUnusable(Exception):
    """The file is no model, or not of the kind that it was said to be; the message says more."""


def cv2() -> Any:
    """OpenCV, with one thread: the pool has as many processes as there are cores."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


@lru_cache(maxsize=4)
def load_net(path: str, side: int) -> Any:
    """The net in a file, for squares of one size only: OpenCV 4 mixes up what it keeps of two."""
    opencv = cv2()
    try:
        return opencv.dnn.readNetFromONNX(path)
    except opencv.error as error:
        raise ModelUnusable(
            f"{path} is no ONNX model that OpenCV reads: {_error_text(error)}"
        ) from None


def run_net(path: str, pixels: Pixels, scale: float, names: list[str] | None = None) -> list[Any]:
    """What a net says about a square of RGB, multiplied by `scale`: its outputs, or those named."""
    opencv, net = cv2(), load_net(path, pixels.shape[0])
    try:
        net.setInput(opencv.dnn.blobFromImage(pixels, scale))
        found = net.forward(list(names or net.getUnconnectedOutLayersNames()))
    except opencv.error as error:
        side = pixels.shape[0]
        raise ModelUnusable(
            f"{path} cannot look at {side} x {side} pixels (IMAGE_DETECT_SIZE): "
            f"{_error_text(error)}"
        ) from None
    return list(found)


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


#: Pixels of the square for each of the map.
STRIDE: Final = 4
#: From which heat on it is a face. Rather a vase blurred than a face missed.
CENTERFACE_MIN_SCORE: Final = 0.25
#: The net's names of its outputs: heat, sizes (height, width), shifts (down, right), landmarks.
_OUTPUTS: Final = ["537", "538", "539", "540"]


def find_centerface_faces(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of faces in a square; some of them about the same face."""
    found = run_net(path, pixels, 1.0, _OUTPUTS)[:3]
    side = pixels.shape[0] // STRIDE
    shapes = [tuple(part.shape) for part in found]
    if shapes != [(1, 1, side, side), (1, 2, side, side), (1, 2, side, side)]:
        raise ModelUnusable(f"{path} is no CenterFace model: its outputs are {shapes}")
    heat, sizes, shifts = (part[0] for part in found)
    rows, columns = numpy.nonzero(heat[0] > CENTERFACE_MIN_SCORE)
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


PLATE_MIN_SCORE: Final = 0.35
_UNIT_SCALE: Final = 1 / 255
#: Columns of the first form; fewest rows of the second.
_DETECTION_COLUMNS, _LEAST_ROWS = 6, 5


def find_plates(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of plates in a square."""
    found = run_net(path, pixels, _UNIT_SCALE)
    shapes = [tuple(part.shape) for part in found]
    if len(found) == 1 and found[0].ndim == 3 and found[0].shape[0] == 1:
        table = found[0][0]
        if table.shape[1] == _DETECTION_COLUMNS:
            return _parse_detections(table)
        if table.shape[0] >= _LEAST_ROWS:
            return _parse_candidates(table)
    raise ModelUnusable(
        f"{path} is no model for plates as we can use it: its outputs are {shapes}; one of "
        "[1, N, 6] or [1, 4 + classes, N] is expected"
    )


def _parse_detections(table: Any) -> list[Box]:
    return [Box(*map(float, row[:5])) for row in table if row[4] > PLATE_MIN_SCORE]


def _parse_candidates(table: Any) -> list[Box]:
    scores = table[4:].max(axis=0)
    return [
        Box(
            float(x - width / 2),
            float(y - height / 2),
            float(x + width / 2),
            float(y + height / 2),
            float(score),
        )
        for (x, y, width, height), score in zip(table[:4].T, scores)
        if score > PLATE_MIN_SCORE
    ]


YUNET_MIN_SCORE: Final = 0.5
_MOST: Final = 1000


@lru_cache(maxsize=2)
def _yunet_detector(path: str, size: int) -> Any:
    opencv = cv2()
    try:
        return opencv.FaceDetectorYN.create(
            path, "", (size, size), YUNET_MIN_SCORE, OVERLAP_THRESHOLD, _MOST
        )
    except opencv.error as error:
        raise _unusable(path, error) from None


def find_yunet_faces(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of faces in a square."""
    opencv = cv2()
    try:
        _, found = _yunet_detector(path, pixels.shape[0]).detect(pixels[:, :, ::-1].copy())
    except opencv.error as error:
        raise _unusable(path, error) from None
    return [
        Box(float(x), float(y), float(x + width), float(y + height), float(score))
        for x, y, width, height, *_, score in (() if found is None else found)
    ]


def _unusable(path: str, error: Exception) -> ModelUnusable:
    words = " ".join(str(error).split())[:300]
    return ModelUnusable(f"{path} is no YuNet model that OpenCV can ask: {words}")
