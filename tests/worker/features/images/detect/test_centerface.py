"""CenterFace on a real photograph: the face is found, and is not found again after blurring."""

from __future__ import annotations

import pytest
from PIL import Image, ImageChops, ImageStat

from common.contracts.images import Blur, DetectionKind
from tests.worker.features.images.detect.kit import (
    FACE,
    astronaut,
    centerface,
    landscape,
    on_canvas,
)
from worker.features.images.detect import find_and_blur
from worker.features.images.detect.blur import detect, self_test, with_margin
from worker.features.images.detect.boxes import Box, Detection, overlap


def box_of(found: Detection) -> Box:
    return Box(found.x, found.y, found.x + found.width, found.y + found.height, found.score)


def test_a_face_is_found_where_it_is() -> None:
    [found] = detect(centerface(), astronaut())
    assert found.kind is DetectionKind.FACE
    assert found.score > 0.8
    assert overlap(box_of(found), Box(*FACE, 1.0)) > 0.6


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


def test_blur_none_only_detects() -> None:
    image = astronaut()
    _, reported = find_and_blur(centerface(Blur.NONE), image)
    assert len(reported) == 1
    assert image.tobytes() == astronaut().tobytes()


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


@pytest.mark.parametrize(
    "image",
    [landscape(), Image.new("RGB", (640, 480), "white"), Image.new("RGB", (1, 1)),
     Image.new("RGB", (3000, 1)), Image.effect_noise((400, 300), 80).convert("RGB")],
    ids=["hills", "white", "pixel", "line", "noise"],
)  # fmt: skip
def test_an_image_without_faces_has_no_detections(image: Image.Image) -> None:
    assert detect(centerface(), image) == []


def test_two_faces_are_two() -> None:
    image = Image.new("RGB", (700, 340), "gray")
    image.paste(astronaut(), (10, 10))
    image.paste(astronaut(), (370, 10))
    left, right = sorted(detect(centerface(), image), key=lambda found: found.x)
    assert abs(right.x - left.x - 360) < 15
    find_and_blur(centerface(), image)
    assert detect(centerface(), image) == []


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


@pytest.mark.parametrize("size", [320, 640, 960])
def test_other_sizes_of_the_square(size: int) -> None:
    assert len(detect(centerface(size=size), astronaut())) == 1


def test_the_self_test_passes_with_a_working_model() -> None:
    assert self_test(centerface()) == ""
