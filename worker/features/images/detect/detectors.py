"""The detection models: CenterFace and YuNet for faces, and an operator's model for plates.

Input of a plate model is `[1, 3, S, S]`, RGB from 0 to 1, where S is IMAGE_DETECT_SIZE. Its one
output is either `[1, N, 6]` (left, top, right, bottom, score, class; overlaps already suppressed)
or `[1, 4 + C, N]` (middle x, middle y, width, height, then a score for each of C classes), all in
pixels of the square. The class is ignored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy

from sluice.worker.features.images.detect.boxes import OVERLAP_THRESHOLD, Box, Pixels


class ModelUnusable(Exception):
    """The file is not a model, or not of the expected kind; the message gives the reason."""


def cv2() -> Any:
    """OpenCV limited to one thread: the pool has as many processes as there are cores."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


@lru_cache(maxsize=4)
def load_net(path: str, side: int) -> Any:
    """Load the net of a file.

    One instance per size: OpenCV 4 confuses cached state between sizes.
    """
    opencv = cv2()
    try:
        return opencv.dnn.readNetFromONNX(path)
    except opencv.error as error:
        raise ModelUnusable(
            f"{path} is not an ONNX model that OpenCV can read: {_error_text(error)}"
        ) from None


def run_net(path: str, pixels: Pixels, scale: float, names: list[str] | None = None) -> list[Any]:
    """Run a net on RGB pixels multiplied by `scale`; returns all outputs, or those in `names`."""
    opencv, net = cv2(), load_net(path, pixels.shape[0])
    try:
        net.setInput(opencv.dnn.blobFromImage(pixels, scale))
        found = net.forward(list(names or net.getUnconnectedOutLayersNames()))
    except opencv.error as error:
        side = pixels.shape[0]
        raise ModelUnusable(
            f"{path} does not accept {side} x {side} pixels (IMAGE_DETECT_SIZE): "
            f"{_error_text(error)}"
        ) from None
    return list(found)


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


#: Pixels of the square per cell of the output maps.
STRIDE: Final = 4
#: Minimum heat of a face. A false positive is preferred to a missed face.
CENTERFACE_MIN_SCORE: Final = 0.25
#: Names of the outputs: heat map, sizes (height, width), offsets (down, right), landmarks.
_OUTPUTS: Final = ["537", "538", "539", "540"]


def find_centerface_faces(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of faces in a square; may overlap."""
    found = run_net(path, pixels, 1.0, _OUTPUTS)[:3]
    side = pixels.shape[0] // STRIDE
    shapes = [tuple(part.shape) for part in found]
    if shapes != [(1, 1, side, side), (1, 2, side, side), (1, 2, side, side)]:
        raise ModelUnusable(f"{path} is not a CenterFace model: its outputs are {shapes}")
    heat, sizes, shifts = (part[0] for part in found)
    rows, columns = numpy.nonzero(heat[0] > CENTERFACE_MIN_SCORE)
    # Bounded, because no face is larger than the picture.
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
#: Columns of the first output form; minimum rows of the second.
_DETECTION_COLUMNS, _LEAST_ROWS = 6, 5


def find_plates(path: str, pixels: Pixels) -> list[Box]:
    """Boxes of plates in a square; may overlap."""
    found = run_net(path, pixels, _UNIT_SCALE)
    shapes = [tuple(part.shape) for part in found]
    if len(found) == 1 and found[0].ndim == 3 and found[0].shape[0] == 1:
        table = found[0][0]
        if table.shape[1] == _DETECTION_COLUMNS:
            return _parse_detections(table)
        if table.shape[0] >= _LEAST_ROWS:
            return _parse_candidates(table)
    raise ModelUnusable(
        f"{path} is not a supported plate model: its outputs are {shapes}; one of "
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
    text = " ".join(str(error).split())[:300]
    return ModelUnusable(f"{path} is not a YuNet model that OpenCV can run: {text}")
