"""ThumbHash: equal to the public algorithm, and decodable to a similar picture."""

from __future__ import annotations

import base64
import math
import random

import pytest
from PIL import Image

from tests.support.files import photos
from tests.support.files.pixels import Make
from worker.features.images.pixels.placeholder import make_placeholder, thumbhash


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


@pytest.mark.parametrize("transparent", [False, True])
def test_it_is_the_public_algorithm(transparent: bool) -> None:
    for width, height in ((20, 15), (15, 20), (16, 16), (30, 2), (1, 25), (1, 1), (7, 3)):
        chance = random.Random(width * 100 + height + transparent)
        for _ in range(3):
            rgba = bytearray(chance.randrange(256) for _ in range(4 * width * height))
            if not transparent:
                rgba[3::4] = b"\xff" * (width * height)
            found = thumbhash(width, height, bytes(rgba))
            assert found == reference_hash(width, height, bytes(rgba))
            assert len(found) <= 25
    image = photos.harness(48, 36)
    assert hashed(image) == reference_hash(48, 36, image.convert("RGBA").tobytes())
    for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)):
        plain = Image.new("RGB", (32, 32), colour)
        wanted = reference_hash(32, 32, plain.convert("RGBA").tobytes())
        assert hashed(plain)[:5] == wanted[:5]  # the rest is multiplied by zero
    hidden = Image.new("RGBA", (9, 9), (1, 2, 3, 0))
    assert hashed(hidden)[:6] == reference_hash(9, 9, hidden.tobytes())[:6]
    for size in ((0, 5), (101, 5), (5, 101)):
        with pytest.raises(ValueError, match="has no hash"):
            thumbhash(*size, bytes(4 * size[0] * size[1]))


def test_it_is_of_the_image_as_stored(make: Make) -> None:
    found = base64.b64decode(make(photos.photograph("jpeg", 6)).made.details["thumbhash"])
    expected = hashed(photos.harness().resize((64, 48), Image.Resampling.BOX))
    assert len(found) == len(expected)
    assert found[4] >> 7 == expected[4] >> 7 == 1  # landscape
    head, wanted = (int.from_bytes(data[:3], "little") for data in (found, expected))
    for shift in (0, 6, 12):  # mean light and colours, of 64 steps each
        assert abs((head >> shift & 63) - (wanted >> shift & 63)) <= 2
    assert make_placeholder(Image.new("RGB", (1, 5000))).dominant_color == "#000000"
