"""CenterFace on a real photograph, models of the operator, and the choice of detectors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageDraw, ImageStat

from sluice.common.contracts.images import Blur, DetectionKind, Detector
from sluice.common.errors import SettingsError
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.process_pool import plain
from sluice.worker.execution.process_pool.pool import ProcessPool
from sluice.worker.features.images.detect import choice as choice_module
from sluice.worker.features.images.detect import find_and_blur
from sluice.worker.features.images.detect.blur import detect, self_test, with_margin
from sluice.worker.features.images.detect.boxes import (
    Box,
    overlap,
    suppress_overlaps,
    to_detections,
)
from sluice.worker.features.images.detect.choice import DetectorChoice, choose_detector
from tests.support.files.detection import NetOutput, astronaut, centerface, write_net

#: The same as in the worker.
MEMORY_BYTES = 1536 * 1024 * 1024
#: Position of the face in the portrait: left, top, right, bottom.
FACE = (103, 60, 190, 175)
with_model = pytest.mark.slow("uses the installed model")


def on_canvas(size: tuple[int, int], at: tuple[int, int] = (40, 40)) -> Image.Image:
    """The portrait on a plain background."""
    canvas = Image.new("RGB", size, (90, 120, 150))
    canvas.paste(astronaut(), at)
    return canvas


def landscape() -> Image.Image:
    """Hills under a sun, without faces."""
    image = Image.new("RGB", (800, 500), (140, 180, 230))
    draw = ImageDraw.Draw(image)
    hills = [(0, 350), (250, 220), (500, 360), (800, 260), (800, 500), (0, 500)]
    draw.polygon(hills, (60, 120, 50))
    draw.ellipse((600, 40, 700, 140), (250, 230, 120))
    return image


def box_of(found: Any) -> Box:
    return Box(found.x, found.y, found.x + found.width, found.y + found.height, found.score)


@with_model
def test_a_face_is_found_where_it_is() -> None:
    image = astronaut()
    _, reported = find_and_blur(centerface(Blur.NONE), image)
    assert len(reported) == 1
    assert image.tobytes() == astronaut().tobytes()
    [found] = detect(centerface(), image)
    assert found.kind is DetectionKind.FACE
    assert found.score > 0.8
    assert overlap(box_of(found), Box(*FACE, 1.0)) > 0.6
    assert self_test(centerface()) == ""


@with_model
@pytest.mark.parametrize("how", [Blur.PIXELATE, Blur.GAUSSIAN])
def test_a_face_becomes_unrecognisable_and_the_rest_is_kept(how: Blur) -> None:
    image, before = astronaut(), astronaut()
    [found] = detect(centerface(), before)
    name, reported = find_and_blur(centerface(how), image)
    assert name == "centerface"
    assert reported == [found.to_json()]
    assert detect(centerface(), image) == []
    box = with_margin(found, image.size)
    # Fine detail is gone: neighbouring pixels are similar, except at the edges of a few cells.
    if how is Blur.PIXELATE:
        assert image.crop(box).getcolors(8 * 8) is not None
    sharp, dull = (detail(each.crop(box)) for each in (before, image))
    assert dull < sharp / 3
    image.paste(0, box)
    before.paste(0, box)
    assert ImageChops.difference(image, before).getbbox() is None


def detail(part: Image.Image) -> float:
    """Mean difference between neighbouring pixels."""
    gray = part.convert("L")
    return float(ImageStat.Stat(ImageChops.difference(gray, ImageChops.offset(gray, 1, 0))).mean[0])


@with_model
def test_alternating_sizes_give_the_same_detections() -> None:
    wide, tall = on_canvas((900, 420)), on_canvas((420, 900), (60, 400))
    first = detect(centerface(), wide)
    assert len(first) == 1
    second = detect(centerface(), tall)
    assert len(second) == 1
    assert detect(centerface(), wide) == first
    assert detect(centerface(), tall) == second
    moved = second[0]._replace(x=second[0].x - 20, y=second[0].y - 360)
    assert overlap(box_of(moved), box_of(first[0])) > 0.8


@with_model
def test_an_image_without_faces_has_no_detections() -> None:
    noise = Image.effect_noise((400, 300), 80).convert("RGB")
    plain = (Image.new("RGB", size, "white") for size in ((640, 480), (1, 1), (3000, 1)))
    for image in (landscape(), noise, *plain):
        assert detect(centerface(), image) == []


@with_model
def test_two_faces_are_two() -> None:
    image = Image.new("RGB", (700, 340), "gray")
    image.paste(astronaut(), (10, 10))
    image.paste(astronaut(), (370, 10))
    left, right = sorted(detect(centerface(), image), key=lambda found: found.x)
    assert abs(right.x - left.x - 360) < 15
    find_and_blur(centerface(), image)
    assert detect(centerface(), image) == []


@with_model
def test_a_face_visible_through_transparency_is_found() -> None:
    """A face in the alpha channel of a black picture is visible as a face."""
    image = Image.new("RGBA", (320, 320), "black")
    image.putalpha(ImageChops.invert(astronaut().convert("L")))
    assert len(detect(centerface(), image)) == 1
    find_and_blur(centerface(), image)
    assert detect(centerface(), image) == []
    hidden = astronaut().convert("RGBA")
    hidden.putalpha(0)
    assert detect(centerface(), hidden) == []


def count_faces(choice: DetectorChoice) -> int:
    return len(detect(choice, astronaut()))


@pytest.mark.slow("builds large networks; smaller ones are used above")
@pytest.mark.parametrize("size", [640, 960])
async def test_other_sizes_of_the_square(size: int) -> None:
    pool = ProcessPool(1, memory_bytes=MEMORY_BYTES)  # the memory stays out of this process
    try:
        assert await pool.run(count_faces, centerface(size=size)) == 1
    finally:
        await pool.close()


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


def test_yunet_alone_and_with_plates(tmp_path: Path) -> None:
    faces = yunet(tmp_path / "yunet.onnx")
    choice = DetectorChoice(Detector.YUNET, str(faces), size=SIZE)
    [found] = detect(choice, image := Image.new("RGB", (64, 64)))
    # Centre at (2.5, 0.5) cells of 16 pixels, 16 wide and 24 high: clipped at the top.
    assert found[:5] == (DetectionKind.FACE, 32, 0, 16, 20)
    assert found.score == pytest.approx(0.9, abs=0.01)
    assert choice.name == "yunet"
    rows = [8, 40, 24, 48, 0.9, 0]
    plates = write_net(tmp_path / "plates.onnx", SIZE, {"finds": ((1, 1, 6), rows)})
    choice = DetectorChoice(Detector.YUNET, str(faces), str(plates), SIZE, Blur.GAUSSIAN)
    name, reported = find_and_blur(choice, image)
    assert name == "yunet+plates"
    assert [each["kind"] for each in reported] == ["face", "plate"]


def test_models_that_are_damaged_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    text = str(tmp_path / "text.onnx")
    odd = str(write_net(tmp_path / "odd.onnx", SIZE, {"out": ((1, 3, 2), [0.0] * 6)}))
    for choice, words in (
        (DetectorChoice(Detector.CENTERFACE, text, size=SIZE), text),
        (DetectorChoice(Detector.YUNET, text, size=SIZE), text),
        (DetectorChoice(plate_model=text, size=SIZE), text),
        (DetectorChoice(Detector.CENTERFACE, odd, size=SIZE), odd),
        (DetectorChoice(plate_model=odd, size=SIZE), "[1, N, 6]"),
    ):
        assert words in self_test(choice)


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


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory of models."""
    monkeypatch.setenv("SLUICE_MODELS_DIR", str(tmp_path))
    return tmp_path


def chosen(**given: Any) -> DetectorChoice:
    return choose_detector(load_settings(WorkerSettings, **given))


def test_auto_uses_the_installed_model_if_any(models: Path) -> None:
    found = chosen()
    assert (found.name, found.enabled) == ("none", False)
    assert "sluice model install --only faces" in found.unavailable_reason
    (models / "centerface.onnx").touch()
    found = chosen(image_blur="gaussian", image_detect_size=320)
    assert found.name == "centerface"
    assert found.face_model == str(models / "centerface.onnx")
    assert (found.size, found.blur.value, found.unavailable_reason) == (320, "gaussian", "")
    assert plain.loads(plain.dumps(found), plain.find) == found
    disabled = chosen(image_detector="none")
    assert (disabled.name, disabled.unavailable_reason) == ("none", "")


def test_auto_without_the_package_names_the_extra(models: Path, monkeypatch: Any) -> None:
    model = models / "centerface.onnx"
    model.touch()
    monkeypatch.setattr(choice_module, "_PACKAGES", ("no_such_package",))
    assert "sluice[faces]" in chosen().unavailable_reason
    named = {"image_model_path": str(model)}, {"image_plate_model": str(model)}
    for given in ({"image_detector": "centerface"}, *named):
        with pytest.raises(SettingsError, match=r"sluice\[faces\]"):
            chosen(**given)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("image_detector", "centerface", "sluice model install --only faces"),
        ("image_detector", "yunet", "IMAGE_MODEL_PATH"),
        ("image_model_path", "/no/such.onnx", "IMAGE_MODEL_PATH='/no/such.onnx'"),
        ("image_plate_model", "/no/such.onnx", "IMAGE_PLATE_MODEL='/no/such.onnx'"),
    ],
)
def test_a_configured_detector_must_be_available(
    models: Path, setting: str, value: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        chosen(**{setting: value})


def test_a_model_file_of_the_operator(models: Path) -> None:
    mine, yunet = models / "mine.onnx", models / "face_detection_YuNet_2023mar.onnx"
    mine.touch()
    yunet.touch()
    assert chosen(image_model_path=str(mine)).faces is Detector.CENTERFACE
    assert chosen(image_model_path=str(yunet)).faces is Detector.YUNET
    assert chosen(image_model_path=str(mine), image_detector="yunet").faces is Detector.YUNET
    both = chosen(image_model_path=str(mine), image_plate_model=str(yunet))
    assert both.name == "centerface+plates"
