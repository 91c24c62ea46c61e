"""Models of the operator: plates, YuNet, and invalid files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from PIL import Image

from common.contracts.images import Blur, DetectionKind, Detector
from tests.worker.features.images.detect.onnx_files import NetOutput, write_net
from worker.features.images.detect.blur import detect, find_and_blur, self_test
from worker.features.images.detect.boxes import Box, overlap, suppress_overlaps, to_detections
from worker.features.images.detect.choice import DetectorChoice

SIZE = 64


def striped(width: int, height: int) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    for x in range(0, width, 2):
        image.paste((0, 0, 0), (x, 0, x + 1, height))
    return image


def test_plates_as_detections(tmp_path: Path) -> None:
    """Output `[1, N, 6]`: corners, score, class."""
    rows = [8, 16, 24, 24, 0.9, 0, 40, 40, 60, 50, 0.1, 0]
    path = write_net(tmp_path / "plates.onnx", SIZE, {"finds": ((1, 2, 6), rows)})
    choice = DetectorChoice(plate_model=str(path), size=SIZE)
    assert choice.name == "plates"
    image = striped(128, 64)  # half as large in the square
    name, reported = find_and_blur(choice, image)
    assert name == "plates"
    assert reported == [
        {"kind": "plate", "x": 16, "y": 32, "width": 32, "height": 16, "score": 0.9}
    ]
    # A margin of a fifth on each side: 10..54 and 29..51.
    assert image.crop((10, 29, 54, 51)).getcolors(8 * 4) is not None
    left = {color for _, color in image.crop((0, 0, 128, 29)).getcolors(100) or ()}
    assert left == {(0, 0, 0), (255, 255, 255)}


def test_plates_as_candidates(tmp_path: Path) -> None:
    """Output `[1, 4 + C, N]`: centres, sizes, a score per class; several for one object."""
    columns = {  # x, y, width, height, scores of two classes
        0: (16, 16, 16, 8, 0.1, 0.8),
        1: (17, 16, 16, 8, 0.7, 0.1),
        2: (48, 48, 8, 8, 0.5, 0.2),
        **dict.fromkeys(range(3, 10), (32, 32, 8, 8, 0.1, 0.05)),
    }
    values = [columns[column][row] for row in range(6) for column in range(10)]
    path = write_net(tmp_path / "plates.onnx", SIZE, {"out": ((1, 6, 10), values)})
    found = detect(DetectorChoice(plate_model=str(path), size=SIZE), Image.new("RGB", (64, 64)))
    assert [each[:5] for each in found] == [
        (DetectionKind.PLATE, 8, 12, 16, 8),
        (DetectionKind.PLATE, 44, 44, 8, 8),
    ]
    assert found[0].score == pytest.approx(0.8)


def yunet(path: Path) -> Path:
    """A net in the form of YuNet that finds one face at the third cell of the middle stride."""
    outputs: dict[str, NetOutput] = {}
    for part, width in (("cls", 1), ("obj", 1), ("bbox", 4), ("kps", 10)):
        for stride in (8, 16, 32):
            cells = (SIZE // stride) ** 2
            values = [0.0] * (cells * width)
            if stride == 16 and part in ("cls", "obj"):
                values[2] = 0.9
            if stride == 16 and part == "bbox":
                values[8:12] = [0.5, 0.5, math.log(1.0), math.log(1.5)]
            outputs[f"{part}_{stride}"] = ((1, cells, width), values)
    return write_net(path, SIZE, outputs)


def test_yunet(tmp_path: Path) -> None:
    path = yunet(tmp_path / "yunet.onnx")
    choice = DetectorChoice(Detector.YUNET, str(path), size=SIZE)
    [found] = detect(choice, Image.new("RGB", (64, 64)))
    # Centre at (2.5, 0.5) cells of 16 pixels, 16 wide and 24 high: clipped at the top.
    assert found[:5] == (DetectionKind.FACE, 32, 0, 16, 20)
    assert found.score == pytest.approx(0.9, abs=0.01)
    assert choice.name == "yunet"


def test_faces_and_plates_together(tmp_path: Path) -> None:
    faces = yunet(tmp_path / "faces.onnx")
    rows = [8, 40, 24, 48, 0.9, 0]
    plates = write_net(tmp_path / "plates.onnx", SIZE, {"finds": ((1, 1, 6), rows)})
    choice = DetectorChoice(Detector.YUNET, str(faces), str(plates), SIZE, Blur.GAUSSIAN)
    name, reported = find_and_blur(choice, Image.new("RGB", (64, 64)))
    assert name == "yunet+plates"
    assert [each["kind"] for each in reported] == ["face", "plate"]


def test_files_that_are_not_models_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    text = str(tmp_path / "text.onnx")
    for choice in (
        DetectorChoice(Detector.CENTERFACE, text, size=SIZE),
        DetectorChoice(Detector.YUNET, text, size=SIZE),
        DetectorChoice(plate_model=text, size=SIZE),
    ):
        assert text in self_test(choice)


def test_models_of_another_kind_are_refused(tmp_path: Path) -> None:
    odd = str(write_net(tmp_path / "odd.onnx", SIZE, {"out": ((1, 3, 2), [0.0] * 6)}))
    assert "[1, N, 6]" in self_test(DetectorChoice(plate_model=odd, size=SIZE))
    assert odd in self_test(DetectorChoice(Detector.CENTERFACE, odd, size=SIZE))


def test_without_detectors_nothing_is_found() -> None:
    image = striped(64, 64)
    assert find_and_blur(DetectorChoice(), image) == ("none", [])
    assert image.tobytes() == striped(64, 64).tobytes()


def test_the_best_of_overlapping_boxes_is_kept() -> None:
    one, same = Box(0, 0, 10, 10, 0.5), Box(1, 0, 11, 10, 0.9)
    other, empty = Box(50, 50, 60, 60, 0.4), Box(5, 5, 5, 9, 1.0)
    assert suppress_overlaps([one, same, other, empty], 10) == [same, other]
    assert suppress_overlaps([one, same, other], 1) == [same]
    assert overlap(one, one) == 1.0
    assert overlap(one, other) == overlap(empty, empty) == 0.0


def test_boxes_are_clipped_to_the_image() -> None:
    boxes = [Box(-5, -5, 20, 20, 0.9), Box(90, 90, 99, 99, 0.8)]
    [found] = to_detections(boxes, 0.5, (100, 60), DetectionKind.FACE)
    assert found[1:5] == (0, 0, 40, 40)
