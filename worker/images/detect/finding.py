"""Looks at an image, and makes unrecognisable what it finds. Runs in a process of the pool."""

from __future__ import annotations

from typing import Any, Final

from PIL import Image

from common.contracts.images import DetectionKind, Detector
from worker.images.detect import centerface, plates, yunet
from worker.images.detect.blurring import blur
from worker.images.detect.boxes import Detection, placed, thinned
from worker.images.detect.choice import DetectorChoice
from worker.images.detect.letterbox import letterbox

#: Finds of a kind in one image; the best ones of more.
MOST_FINDS: Final = 500


def find_and_blur(choice: DetectorChoice, image: Image.Image) -> tuple[str, list[dict[str, Any]]]:
    """Who looked, and what it found; in the image itself that is unrecognisable now."""
    detections = find(choice, image)
    blur(image, detections, choice.blur)
    return choice.name, [detection.told() for detection in detections]


def find(choice: DetectorChoice, image: Image.Image) -> list[Detection]:
    """Faces, then plates; the surest first. Raises ModelUnusable."""
    if not choice.looks:
        return []
    square = letterbox(image, choice.size)
    found: list[Detection] = []
    if choice.faces is not Detector.NONE:
        look = yunet.find if choice.faces is Detector.YUNET else centerface.find
        faces = thinned(look(choice.face_model, square.pixels), MOST_FINDS)
        found += placed(faces, square.scale, image.size, DetectionKind.FACE)
    if choice.plate_model:
        seen = thinned(plates.find(choice.plate_model, square.pixels), MOST_FINDS)
        found += placed(seen, square.scale, image.size, DetectionKind.PLATE)
    return found


def try_out(choice: DetectorChoice) -> str:
    """Look at nothing; '' where that works, else why the models cannot be used."""
    from worker.images.detect.nets import ModelUnusable

    try:
        find(choice, Image.new("RGB", (choice.size, choice.size), "gray"))
    except ModelUnusable as error:
        return str(error)
    return ""
