"""Headers, orientation, size, and the choice of a frame."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageStat

from sluice.worker.features.images.pixels import formats
from sluice.worker.features.images.pixels.decode import target_size
from sluice.worker.features.images.pixels.formats import FORMATS, HEAD_BYTES
from tests.support.files import bad_photos, photos
from tests.support.files.detection import astronaut
from tests.support.files.exif import exif, xmp
from tests.support.files.photos import CORNERS, photograph
from tests.support.files.pixels import LIMITS, Make, Result, near


def test_size_of_a_webp() -> None:
    for size in ((1, 1), (640, 480), (16_383, 2), (3, 16_383)):
        for lossless, mode in product((False, True), ("RGB", "RGBA")):
            image = Image.new(mode, size, (10, 20, 30, 40)[: len(mode)])
            made = photos.encoded(image, "webp", lossless=lossless, method=0)
            assert formats.webp_size(made[:HEAD_BYTES]) == size
            assert formats.webp_is_complete(made[:HEAD_BYTES], len(made))
            assert not formats.webp_is_complete(made[:HEAD_BYTES], len(made) - 3)
    assert formats.webp_size(photos.animation("webp")[:HEAD_BYTES]) == (64, 48)
    assert formats.webp_size(bad_photos.webp_bomb(12_000)[:HEAD_BYTES]) == (12_000, 12_000)
    for made in (photos.animation("webp"), photos.encoded(photos.scene(9, 9), "webp")):
        for length in range(0, 30, 3):  # an incomplete header
            assert formats.webp_size(made[:length].ljust(20, b"\0")[:length]) is None


@pytest.mark.parametrize("kind", ["avif", "heic"])
@pytest.mark.parametrize("size", [(64, 48), (333, 128)])
def test_size_in_boxes(kind: str, size: tuple[int, int]) -> None:
    made = photos.photograph(kind, 1, *size)
    width, height = formats.heif_size(io.BytesIO(made), len(made)) or (0, 0)
    assert (width, height) >= size  # may be padded to whole blocks
    assert width * height <= 2 * size[0] * size[1]
    assert formats.heif_size(io.BytesIO(made[:-1]), len(made) - 1) is None


def test_boxes_of_any_length() -> None:
    long = struct.pack(">I4sQ", 1, b"mdat", 20) + b"abcd"
    rest = struct.pack(">I4s", 0, b"mdat") + b"to the end"
    empty = struct.pack(">I4s", 7, b"free")
    for boxes, found in (
        (long, (0, 0)),
        (long + rest, (0, 0)),
        (long + empty, None),
        (b"", (0, 0)),
    ):
        assert formats.heif_size(io.BytesIO(boxes), len(boxes)) == found


def test_frames_of_a_gif() -> None:
    for frames in (1, 2, 59, 60, 61):
        assert formats.gif_frames(io.BytesIO(photos.animation("gif", frames)), 60) == frames
        assert formats.gif_frames(io.BytesIO(bad_photos.gif_of_frames(frames)), 60) == frames
        assert formats.gif_frames(io.BytesIO(bad_photos.gif_of_frames(1000)), frames) == frames + 1
    whole = photos.photograph("gif")
    assert formats.gif_frames(io.BytesIO(whole), 60) == 1
    for length in (0, 6, 12, 13, 100, 800, 2000):  # a part of it
        assert formats.gif_frames(io.BytesIO(whole[:length]), 60) in (0, 1)


def test_formats_are_known_by_how_they_begin() -> None:
    def begins(first: bytes, *others: bytes) -> bytes:
        return struct.pack(">I4s4sI", 16 + 4 * len(others), b"ftyp", first, 0) + b"".join(others)

    for kind in FORMATS:
        assert formats.detect_format(photos.photograph(kind)[:HEAD_BYTES]) == kind
    assert formats.detect_format(begins(b"mif1", b"miaf", b"avif")) == "avif"
    assert formats.detect_format(begins(b"mif1", b"heic")) == "heic"
    assert formats.detect_format(begins(b"isom", b"mp42")) == ""
    assert formats.detect_format(begins(b"mif1") + b"avif") == ""  # after the box


def is_upright(result: Result) -> bool:
    places = ((0.04, 0.04), (0.96, 0.04), (0.04, 0.96), (0.96, 0.96))
    return all(near(result.pixel(*at), colour, 40) for at, colour in zip(places, CORNERS))


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [*(("jpeg", turn) for turn in range(1, 9)),
     *((kind, turn) for kind in ("png", "webp", "avif", "tiff", "heic") for turn in (1, 6))],
)  # fmt: skip
def test_upright(make: Make, kind: str, orientation: int) -> None:
    made, _ = result = make(photograph(kind, orientation, 320, 240))
    assert (made.original_width, made.original_height) == (320, 240)
    assert (made.width, made.height) == (320, 240)
    assert is_upright(result)
    if kind == "jpeg":  # the limit applies to the width after rotation
        smaller = replace(LIMITS, max_width=200)
        made, _ = result = make(photograph("jpeg", orientation, 640, 480), limits=smaller)
        assert (made.original_width, made.original_height) == (640, 480)
        assert (made.width, made.height) == result.image.size == (200, 150)
        assert is_upright(result)


def test_invalid_exif_is_ignored(make: Make) -> None:
    nonsense = (b"", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff" + b"\xee" * 40)
    for marks in (*nonsense, *(exif(orientation) for orientation in (0, 9, 77))):
        source = photos.encoded(photos.scene(320, 240), "jpeg", exif=b"Exif\0\0" + marks)
        assert is_upright(make(source))
    source = photos.encoded(photos.turned(photos.scene(320, 240), 6), "jpeg", xmp=xmp(6))
    assert is_upright(make(source))  # orientation only in XMP


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((1920, 1080), (1920, 1080)), ((1921, 1080), (1920, 1079)), ((4032, 3024), (1920, 1440)),
     ((3024, 4032), (1920, 2560)), ((100, 50), (100, 50)), ((20_000, 1), (1920, 1)),
     ((1, 20_000), (1, 16_383)), ((1000, 20_000), (819, 16_383)), ((1, 1), (1, 1))],
)  # fmt: skip
def test_target(size: tuple[int, int], wanted: tuple[int, int]) -> None:
    assert target_size(*size, 1920) == wanted


def test_a_large_jpeg_is_reduced_in_good_quality(make: Make) -> None:
    """libjpeg decodes to a smaller size; that must not be visible."""
    image = photos.scene(1250, 938)
    best = image.resize((300, 225), Image.Resampling.LANCZOS)
    for options in ({}, {"progressive": True}, {"subsampling": 0}):
        source = photos.encoded(image, "jpeg", quality=92, **options)
        result = make(source, limits=replace(LIMITS, max_width=300))
        assert result.image.size == (300, 225)
        difference = np.asarray(result.image, dtype=float) - np.asarray(best, dtype=float)
        assert 10 * np.log10(255**2 / (difference**2).mean()) > 30


@pytest.mark.parametrize("kind", FORMATS)
def test_the_result_looks_like_the_photograph(make: Make, kind: str) -> None:
    portrait = astronaut()
    image = make(photos.encoded(portrait, kind)).image
    assert image.size == portrait.size
    difference = ImageStat.Stat(ImageChops.difference(image.convert("RGB"), portrait))
    assert max(difference.mean) < (16 if kind == "gif" else 6)


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "avif"])
def test_the_first_frame_of_an_animation(make: Make, kind: str) -> None:
    result = make(photos.animation(kind))
    assert result.details["source_frames"] == 3
    assert result.details["source_format"] == kind
    assert getattr(result.image, "n_frames", 1) == 1
    assert near(result.pixel(0.5, 0.5), (255, 0, 0), 12)


@pytest.mark.parametrize("kind", ["tiff", "heic", "jpeg"])
def test_pages_are_no_frames(make: Make, kind: str) -> None:
    image, *more = (photos.scene(64, 48, seed) for seed in range(3))
    form = "mpo" if kind == "jpeg" else kind  # several images in one file, as some cameras write
    result = make(photos.encoded(image, form, save_all=True, append_images=more))
    assert result.details["source_frames"] == 1
    assert is_upright(result)


def test_sizes_of_results(make: Make) -> None:
    for size in ((1, 1), (1, 20_000), (20_000, 1), (3, 2), (2000, 3)):
        made, _ = result = make(photos.scene(*size))
        assert (made.original_width, made.original_height) == size
        assert result.image.size == (made.width, made.height) == target_size(*size, 1920)
    # A portrait may be higher than wide.
    made = make(photograph("jpeg", 6, 480, 2400), limits=replace(LIMITS, max_width=240)).made
    assert (made.width, made.height) == (240, 1200)
    red, green, blue = make(photos.encoded(photos.scene().convert("L"), "jpeg")).pixel(0.04, 0.04)
    assert max(red, green, blue) - min(red, green, blue) <= 3
