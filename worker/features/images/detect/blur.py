"""Makes parts of an image unrecognisable, so that nothing can bring them back.

Whatever it looks like in the end, a part is first reduced to a few cells: what was between them is
gone. (A blur alone can be undone, more or less, by who knows its strength.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from PIL import Image, ImageFilter

from common.contracts.images import Blur, DetectionKind, Detector
from worker.features.images.detect import detectors
from worker.features.images.detect.boxes import (
    Detection,
    letterbox,
    suppress_overlaps,
    to_detections,
)
from worker.features.images.detect.choice import DetectorChoice

#: What is around a find is taken along: so much of its width and height, on each side.
MARGIN: Final = 0.2
#: Cells along the longer side of a part, at most; and pixels of a cell, at least.
MOST_CELLS: Final = 8
MIN_CELL_PIXELS: Final = 4
#: How soft the transitions between cells are, by the longer side.
_SOFTNESS: Final = 1 / 16


def blur(image: Image.Image, detections: Iterable[Detection], how: Blur) -> None:
    """Do it, in the image itself; transparency is reduced likewise."""
    if how is Blur.NONE:
        return
    for detection in detections:
        box = with_margin(detection, image.size)
        part = image.crop(box)
        image.paste(_obscure(part, how), box)


def with_margin(detection: Detection, size: tuple[int, int]) -> tuple[int, int, int, int]:
    across, down = round(detection.width * MARGIN), round(detection.height * MARGIN)
    return (
        max(0, detection.x - across),
        max(0, detection.y - down),
        min(size[0], detection.x + detection.width + across),
        min(size[1], detection.y + detection.height + down),
    )


def _obscure(part: Image.Image, how: Blur) -> Image.Image:
    longer = max(part.size)
    cells = max(1, min(MOST_CELLS, longer // MIN_CELL_PIXELS))
    few = part.resize(
        (max(1, part.width * cells // longer), max(1, part.height * cells // longer)),
        Image.Resampling.BOX,
    )
    if how is Blur.PIXELATE:
        return few.resize(part.size, Image.Resampling.NEAREST)
    soft = few.resize(part.size, Image.Resampling.BICUBIC)
    return soft.filter(ImageFilter.GaussianBlur(max(1.0, longer * _SOFTNESS)))


#: Finds of a kind in one image; the best ones of more.
MOST_DETECTIONS: Final = 500


def find_and_blur(choice: DetectorChoice, image: Image.Image) -> tuple[str, list[dict[str, Any]]]:
    """Who looked, and what it found; in the image itself that is unrecognisable now."""
    detections = detect(choice, image)
    blur(image, detections, choice.blur)
    return choice.name, [detection.to_json() for detection in detections]


def detect(choice: DetectorChoice, image: Image.Image) -> list[Detection]:
    """Faces, then plates; the surest first. Raises ModelUnusable."""
    if not choice.enabled:
        return []
    square = letterbox(image, choice.size)
    found: list[Detection] = []
    if choice.faces is not Detector.NONE:
        look = (
            detectors.find_yunet_faces
            if choice.faces is Detector.YUNET
            else detectors.find_centerface_faces
        )
        faces = suppress_overlaps(look(choice.face_model, square.pixels), MOST_DETECTIONS)
        found += to_detections(faces, square.scale, image.size, DetectionKind.FACE)
    if choice.plate_model:
        seen = suppress_overlaps(
            detectors.find_plates(choice.plate_model, square.pixels), MOST_DETECTIONS
        )
        found += to_detections(seen, square.scale, image.size, DetectionKind.PLATE)
    return found


def self_test(choice: DetectorChoice) -> str:
    """Look at nothing; '' where that works, else why the models cannot be used."""
    from worker.features.images.detect.detectors import ModelUnusable

    try:
        detect(choice, Image.new("RGB", (choice.size, choice.size), "gray"))
    except ModelUnusable as error:
        return str(error)
    return ""
