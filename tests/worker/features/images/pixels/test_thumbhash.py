"""ThumbHash: equal to the public algorithm, and decodable to a similar picture."""

from __future__ import annotations

import base64
import math
import random

import pytest
from PIL import Image

from tests.support import photos
from tests.worker.features.images.pixels.kit import Make, near
from worker.features.images.pixels.placeholder import make_placeholder, thumbhash

Terms = dict[tuple[int, int], float]


class Read:
    """Decoder of the hash, after the public description."""

    def __init__(self, data: bytes) -> None:
        head, shape = int.from_bytes(data[:3], "little"), int.from_bytes(data[3:5], "little")
        self.has_alpha, self.is_landscape = bool(head >> 23), bool(shape >> 15)
        most, least = 5 if self.has_alpha else 7, shape & 7
        across, down = (most, least) if self.is_landscape else (least, most)
        self.ratio = across / down
        body = data[6 if self.has_alpha else 5 :]
        self._halves = iter([half for byte in body for half in (byte & 15, byte >> 4)])
        self.light = (
            (head & 63) / 63,
            self._terms(max(3, across), max(3, down), head >> 18 & 31, 31),
        )
        self.yellow = (head >> 6 & 63) / 31.5 - 1, self._terms(3, 3, shape >> 3 & 63, 63 / 1.25)
        self.red = (head >> 12 & 63) / 31.5 - 1, self._terms(3, 3, shape >> 9 & 63, 63 / 1.25)
        self.alpha: tuple[float, Terms] = (1.0, {})
        if self.has_alpha:
            self.alpha = (data[5] & 15) / 15, self._terms(5, 5, data[5] >> 4, 15)
        self.unread = list(self._halves)

    def _terms(self, nx: int, ny: int, scale: int, most: float) -> Terms:
        return {
            (x, y): (next(self._halves) / 7.5 - 1) * scale / most
            for y in range(ny)
            for x in range(nx)
            if (x or y) and x * ny < nx * (ny - y)
        }

    def colour(self, across: float, down: float) -> tuple[float, float, float, float]:
        """Red, green, blue and alpha at a position, from 0 to 255."""

        def value(channel: tuple[float, Terms]) -> float:
            constant, terms = channel
            return constant + 2 * sum(
                term * math.cos(math.pi * x * across) * math.cos(math.pi * y * down)
                for (x, y), term in terms.items()
            )

        light, yellow, red = value(self.light), value(self.yellow), value(self.red)
        b = light - 2 / 3 * yellow
        r = (3 * light - b + red) / 2
        found = [255 * min(1.0, max(0.0, part)) for part in (r, r - red, b, value(self.alpha))]
        return found[0], found[1], found[2], found[3]


def reference_hash(w: int, h: int, rgba: bytes) -> bytes:
    """The public algorithm, written term by term and pixel by pixel."""
    avg = [0.0] * 4
    for i in range(w * h):
        alpha = rgba[4 * i + 3] / 255
        for c in range(3):
            avg[c] += alpha / 255 * rgba[4 * i + c]
        avg[3] += alpha
    if avg[3]:
        avg = [avg[0] / avg[3], avg[1] / avg[3], avg[2] / avg[3], avg[3]]
    has_alpha = any(value < 255 for value in rgba[3::4])
    limit = 5 if has_alpha else 7
    lx = max(1, math.floor(limit * w / max(w, h) + 0.5))
    ly = max(1, math.floor(limit * h / max(w, h) + 0.5))
    lpqa: list[list[float]] = [[], [], [], []]
    for i in range(w * h):
        alpha = rgba[4 * i + 3] / 255
        r, g, b = (avg[c] * (1 - alpha) + alpha / 255 * rgba[4 * i + c] for c in range(3))
        for channel, value in zip(lpqa, ((r + g + b) / 3, (r + g) / 2 - b, r - g, alpha)):
            channel.append(value)

    def encode(channel: list[float], nx: int, ny: int) -> tuple[float, list[float], float]:
        dc, ac, scale = 0.0, [], 0.0
        for cy in range(ny):
            cx = 0
            while cx * ny < nx * (ny - cy):
                f = sum(
                    channel[x + y * w]
                    * math.cos(math.pi / w * cx * (x + 0.5))
                    * math.cos(math.pi / h * cy * (y + 0.5))
                    for y in range(h)
                    for x in range(w)
                ) / (w * h)
                if cx or cy:
                    ac.append(f)
                    scale = max(scale, abs(f))
                else:
                    dc = f
                cx += 1
        return dc, [0.5 + 0.5 / scale * f for f in ac] if scale else ac, scale

    def near_int(value: float) -> int:
        return math.floor(value + 0.5)

    l_dc, l_ac, l_scale = encode(lpqa[0], max(3, lx), max(3, ly))
    p_dc, p_ac, p_scale = encode(lpqa[1], 3, 3)
    q_dc, q_ac, q_scale = encode(lpqa[2], 3, 3)
    landscape = w > h
    header24 = (
        near_int(63 * l_dc) | near_int(31.5 + 31.5 * p_dc) << 6 | near_int(31.5 + 31.5 * q_dc) << 12
        | near_int(31 * l_scale) << 18 | has_alpha << 23
    )  # fmt: skip
    header16 = (
        (ly if landscape else lx) | near_int(63 * p_scale) << 3 | near_int(63 * q_scale) << 9
        | landscape << 15
    )  # fmt: skip
    made = [
        header24 & 255, header24 >> 8 & 255, header24 >> 16, header16 & 255, header16 >> 8,
    ]  # fmt: skip
    acs = [*l_ac, *p_ac, *q_ac]
    if has_alpha:
        a_dc, a_ac, a_scale = encode(lpqa[3], 5, 5)
        made.append(near_int(15 * a_dc) | near_int(15 * a_scale) << 4)
        acs += a_ac
    start = len(made)
    made += [0] * ((len(acs) + 1) // 2)
    for index, f in enumerate(acs):
        made[start + (index >> 1)] |= near_int(15 * f) << ((index & 1) << 2)
    return bytes(made)


def hashed(image: Image.Image) -> bytes:
    return thumbhash(*image.size, image.convert("RGBA").tobytes())


@pytest.mark.parametrize("size", [(20, 15), (15, 20), (16, 16), (30, 2), (1, 25), (1, 1), (7, 3)])
@pytest.mark.parametrize("transparent", [False, True])
def test_it_is_the_public_algorithm(size: tuple[int, int], transparent: bool) -> None:
    width, height = size
    chance = random.Random(width * 100 + height + transparent)
    for _ in range(3):
        rgba = bytearray(chance.randrange(256) for _ in range(4 * width * height))
        if not transparent:
            rgba[3::4] = b"\xff" * (width * height)
        assert thumbhash(width, height, bytes(rgba)) == reference_hash(width, height, bytes(rgba))


def test_of_a_real_picture() -> None:
    image = photos.scene(48, 36)
    assert hashed(image) == reference_hash(48, 36, image.convert("RGBA").tobytes())


@pytest.mark.parametrize(
    "colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (90, 140, 200)]
)
def test_one_colour(colour: tuple[int, int, int]) -> None:
    read = Read(hashed(Image.new("RGB", (32, 32), colour)))
    for place in ((0.1, 0.1), (0.5, 0.5), (0.9, 0.3)):
        assert near(read.colour(*place), (*colour, 255), 12)  # type: ignore[arg-type]
    assert not read.has_alpha


def test_a_picture_can_be_recognised() -> None:
    image = Image.new("RGB", (60, 40), (20, 40, 160))
    image.paste((240, 220, 60), (0, 20, 60, 40))
    read = Read(hashed(image))
    assert near(read.colour(0.5, 0.1), (20, 40, 160), 60)  # type: ignore[arg-type]
    assert near(read.colour(0.5, 0.9), (240, 220, 60), 60)  # type: ignore[arg-type]
    assert read.is_landscape
    assert read.unread in ([], [0])


@pytest.mark.parametrize("size", [(64, 48), (48, 64), (64, 64), (64, 9), (9, 64)])
def test_the_shape_can_be_read(size: tuple[int, int]) -> None:
    read = Read(hashed(photos.scene(*size)))
    assert 0.8 < read.ratio / (size[0] / size[1]) < 1.3
    assert len(hashed(photos.scene(*size))) <= 25


def test_transparency_can_be_read() -> None:
    image = Image.new("RGBA", (32, 32), (200, 30, 30, 255))
    image.paste((0, 0, 0, 0), (16, 0, 32, 32))
    read = Read(hashed(image))
    assert read.has_alpha
    assert read.colour(0.1, 0.5)[3] > 200
    assert read.colour(0.9, 0.5)[3] < 60
    assert near(read.colour(0.1, 0.5)[:3], (200, 30, 30), 30)  # type: ignore[arg-type]
    assert Read(hashed(Image.new("RGBA", (9, 9), (1, 2, 3, 0)))).alpha[0] == 0


@pytest.mark.parametrize("size", [(0, 5), (101, 5), (5, 101)])
def test_invalid_sizes(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="has no hash"):
        thumbhash(*size, bytes(4 * size[0] * size[1]))


def test_it_is_of_the_image_as_stored(make: Make) -> None:
    result = make(photos.photograph("jpeg", 6))
    found = base64.b64decode(result.made.details["thumbhash"])
    read = Read(found)
    assert read.is_landscape
    # It is computed from a reduced image, in one way only.
    small = photos.scene().resize((64, 48), Image.Resampling.BOX)
    for place in ((0.2, 0.2), (0.5, 0.5), (0.8, 0.8)):
        assert near(read.colour(*place), Read(hashed(small)).colour(*place), 20)  # type: ignore[arg-type]
    assert make_placeholder(Image.new("RGB", (1, 5000))).dominant_color == "#000000"
