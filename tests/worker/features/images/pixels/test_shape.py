"""Orientation, size, and the choice of a frame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tests.support import photos
from tests.support.exif_bytes import exif, xmp
from tests.support.photos import CORNERS, photograph
from tests.worker.features.images.pixels.kit import LIMITS, Make, Result, near
from worker.features.images.pixels.decode import target_size


def is_upright(result: Result) -> bool:
    places = ((0.04, 0.04), (0.96, 0.04), (0.04, 0.96), (0.96, 0.96))
    return all(near(result.pixel(*at), colour, 40) for at, colour in zip(places, CORNERS))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "avif", "tiff", "heic"])
def test_upright(make: Make, kind: str, orientation: int) -> None:
    made, _ = result = make(photograph(kind, orientation, 320, 240))
    assert (made.original_width, made.original_height) == (320, 240)
    assert (made.width, made.height) == (320, 240)
    assert is_upright(result)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_and_smaller(make: Make, orientation: int) -> None:
    """The limit applies to the width after rotation."""
    made, _ = result = make(
        photograph("jpeg", orientation, 640, 480), limits=replace(LIMITS, max_width=200)
    )
    assert (made.original_width, made.original_height) == (640, 480)
    assert (made.width, made.height) == result.image.size == (200, 150)
    assert is_upright(result)


def test_a_portrait_may_be_higher_than_wide(make: Make) -> None:
    made = make(photograph("jpeg", 6, 480, 2400), limits=replace(LIMITS, max_width=240)).made
    assert (made.width, made.height) == (240, 1200)


def test_orientation_only_in_xmp(make: Make) -> None:
    source = photos.encoded(photos.turned(photos.scene(320, 240), 6), "jpeg", xmp=xmp(6))
    assert is_upright(make(source))


NONSENSE = (b"", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff" + b"\xee" * 40)


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_invalid_exif_is_ignored(make: Make, nonsense: bytes) -> None:
    assert is_upright(
        make(photos.encoded(photos.scene(320, 240), "jpeg", exif=b"Exif\0\0" + nonsense))
    )


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_an_invalid_orientation_is_ignored(make: Make, orientation: int) -> None:
    marks = b"Exif\0\0" + exif(orientation)
    assert is_upright(make(photos.encoded(photos.scene(320, 240), "jpeg", exif=marks)))


# -- sizes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((1920, 1080), (1920, 1080)),
        ((1921, 1080), (1920, 1079)),
        ((4032, 3024), (1920, 1440)),
        ((3024, 4032), (1920, 2560)),
        ((100, 50), (100, 50)),
        ((20_000, 1), (1920, 1)),
        ((1, 20_000), (1, 16_383)),
        ((1000, 20_000), (819, 16_383)),
        ((1, 1), (1, 1)),
    ],
)
def test_target(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert target_size(*size, 1920) == wanted


@pytest.mark.parametrize("size", [(1, 1), (1, 20_000), (20_000, 1), (3, 2), (2000, 3)])
def test_extremes(make: Make, size: tuple[int, int]) -> None:
    made, _ = result = make(photos.encoded(photos.scene(*size), "png"))
    assert (made.original_width, made.original_height) == size
    assert result.image.size == (made.width, made.height) == target_size(*size, 1920)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_large_jpeg_is_reduced_in_good_quality(make: Make, options: dict[str, object]) -> None:
    """libjpeg decodes to a smaller size; that must not be visible."""
    image = photos.scene(2500, 1875)
    source = photos.encoded(image, "jpeg", quality=92, **options)
    result = make(source, limits=replace(LIMITS, max_width=600))
    assert result.image.size == (600, 450)
    best = image.resize((600, 450), Image.Resampling.LANCZOS)
    difference = np.asarray(result.image, dtype=float) - np.asarray(best, dtype=float)
    assert 10 * np.log10(255**2 / (difference**2).mean()) > 30


def test_grey_jpeg(make: Make) -> None:
    result = make(photos.encoded(photos.scene().convert("L"), "jpeg"))
    red, green, blue = result.pixel(0.04, 0.04)
    assert max(red, green, blue) - min(red, green, blue) <= 3


# -- animations ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "avif"])
def test_the_first_frame_of_an_animation(make: Make, kind: str) -> None:
    result = make(photos.animation(kind))
    assert result.made.details["source_frames"] == 3
    assert result.made.details["source_format"] == kind
    assert getattr(result.image, "n_frames", 1) == 1
    assert near(result.pixel(0.5, 0.5), (255, 0, 0), 12)


@pytest.mark.parametrize("kind", ["tiff", "heic", "jpeg"])
def test_pages_are_no_frames(make: Make, kind: str) -> None:
    images = [photos.scene(64, 48, seed) for seed in range(3)]
    options = {"append_images": images[1:]}
    if kind == "jpeg":  # several images in one file, as some cameras write
        source = photos.encoded(images[0], "mpo", save_all=True, **options)
    else:
        source = photos.encoded(images[0], kind, save_all=True, **options)
    result = make(source)
    assert result.made.details["source_frames"] == 1
    assert is_upright(result)
