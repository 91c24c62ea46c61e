"""Headers give the size of an image before memory is allocated for it."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image

from tests.support import bad_photos, photos
from worker.features.images.pixels.formats import (
    FORMATS,
    HEAD_BYTES,
    detect_format,
    gif_frames,
    heif_size,
    webp_is_complete,
    webp_size,
)

SIZES = [(1, 1), (640, 480), (16_383, 2), (3, 16_383)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_size_of_a_webp(size: tuple[int, int], lossless: bool, mode: str) -> None:
    image = Image.new(mode, size, (10, 20, 30, 40)[: len(mode)])
    made = photos.encoded(image, "webp", lossless=lossless, method=0)
    assert webp_size(made[:HEAD_BYTES]) == size
    assert webp_is_complete(made[:HEAD_BYTES], len(made))
    assert not webp_is_complete(made[:HEAD_BYTES], len(made) - 3)


def test_size_of_an_animated_webp() -> None:
    assert webp_size(photos.animation("webp")[:HEAD_BYTES]) == (64, 48)
    assert webp_size(bad_photos.webp_bomb(12_000)[:HEAD_BYTES]) == (12_000, 12_000)


@pytest.mark.parametrize("length", range(0, 30, 3))
def test_an_incomplete_webp_header(length: int) -> None:
    for made in (photos.animation("webp"), photos.encoded(photos.scene(9, 9), "webp")):
        assert webp_size(made[:length].ljust(20, b"\0")[:length]) is None


@pytest.mark.parametrize("kind", ["avif", "heic"])
@pytest.mark.parametrize("size", [(64, 48), (333, 128)])
def test_size_in_boxes(kind: str, size: tuple[int, int]) -> None:
    made = photos.photograph(kind, 1, *size)
    width, height = heif_size(io.BytesIO(made), len(made)) or (0, 0)
    assert (width, height) >= size  # may be padded to whole blocks
    assert width * height <= 2 * size[0] * size[1]
    assert heif_size(io.BytesIO(made[:-1]), len(made) - 1) is None


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
        assert heif_size(io.BytesIO(boxes), len(boxes)) == found


@pytest.mark.parametrize("frames", [1, 2, 59, 60, 61])
def test_frames_of_a_gif(frames: int) -> None:
    assert gif_frames(io.BytesIO(photos.animation("gif", frames)), 60) == frames
    assert gif_frames(io.BytesIO(bad_photos.gif_of_frames(frames)), 60) == frames
    assert gif_frames(io.BytesIO(bad_photos.gif_of_frames(1000)), frames) == frames + 1


def test_frames_of_half_a_gif() -> None:
    whole = photos.photograph("gif")
    assert gif_frames(io.BytesIO(whole), 60) == 1
    for length in (0, 6, 12, 13, 100, 800, 2000):
        assert gif_frames(io.BytesIO(whole[:length]), 60) in (0, 1)


@pytest.mark.parametrize("kind", FORMATS)
def test_formats_are_known_by_how_they_begin(kind: str) -> None:
    assert detect_format(photos.photograph(kind)[:HEAD_BYTES]) == kind


def test_brands() -> None:
    def begins(*brands: bytes) -> bytes:
        return struct.pack(">I4s4sI", 16 + 4 * len(brands[1:]), b"ftyp", brands[0], 0) + b"".join(
            brands[1:]
        )

    assert detect_format(begins(b"mif1", b"miaf", b"avif")) == "avif"
    assert detect_format(begins(b"mif1", b"heic")) == "heic"
    assert detect_format(begins(b"isom", b"mp42")) == ""
    assert detect_format(begins(b"mif1") + b"avif") == ""  # after the box
