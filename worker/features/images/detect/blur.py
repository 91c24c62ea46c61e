"""Makes parts of an image irreversibly unrecognisable.

With every style, a part is first reduced to a few cells, which discards the details. (A blur
alone can partly be undone if its strength is known.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from PIL import Image, ImageFilter

from sluice.common.contracts.images import Blur, DetectionKind, Detector
from sluice.worker.features.images.detect import detectors
from sluice.worker.features.images.detect.boxes import (
    Detection,
    letterbox,
    suppress_overlaps,
    to_detections,
)
from sluice.worker.features.images.detect.choice import DetectorChoice

#: Fraction of a detection's width and height that is blurred around it, on each side.
MARGIN: Final = 0.2
#: Most cells along the longer side of a part, and fewest pixels of a cell.
MOST_CELLS: Final = 8
MIN_CELL_PIXELS: Final = 4
#: Blur radius between cells, as a fraction of the longer side.
_SOFTNESS: Final = 1 / 16


def blur(image: Image.Image, detections: Iterable[Detection], how: Blur) -> None:
    """Blur in place; transparency is reduced likewise."""
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


#: Most detections of a kind per image; the best ones are kept.
MOST_DETECTIONS: Final = 500


def find_and_blur(choice: DetectorChoice, image: Image.Image) -> tuple[str, list[dict[str, Any]]]:
    """Detect and blur in place. Returns the detector's name and the detections."""
    detections = detect(choice, image)
    blur(image, detections, choice.blur)
    return choice.name, [detection.to_json() for detection in detections]


def detect(choice: DetectorChoice, image: Image.Image) -> list[Detection]:
    """Faces, then plates, each by descending score. Raises ModelUnusable."""
    if not choice.enabled:
        return []
    square = letterbox(image, choice.size)
    found: list[Detection] = []
    if choice.faces is not Detector.NONE:
        find_faces = (
            detectors.find_yunet_faces
            if choice.faces is Detector.YUNET
            else detectors.find_centerface_faces
        )
        faces = suppress_overlaps(find_faces(choice.face_model, square.pixels), MOST_DETECTIONS)
        found += to_detections(faces, square.scale, image.size, DetectionKind.FACE)
    if choice.plate_model:
        plates = suppress_overlaps(
            detectors.find_plates(choice.plate_model, square.pixels), MOST_DETECTIONS
        )
        found += to_detections(plates, square.scale, image.size, DetectionKind.PLATE)
    return found


def self_test(choice: DetectorChoice) -> str:
    """Run the models on an empty image; returns why they cannot be used, '' if they can."""
    from sluice.worker.features.images.detect.detectors import ModelUnusable

    try:
        detect(choice, Image.new("RGB", (choice.size, choice.size), "gray"))
    except ModelUnusable as error:
        return str(error)
    return ""
