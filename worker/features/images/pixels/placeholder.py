"""ThumbHash (a preview in about 25 bytes) and dominant colour of an image.

The ThumbHash algorithm is public (evanw.github.io/thumbhash): brightness, two colour differences
and alpha as the first terms of a cosine transform, four bits per term.
"""

from __future__ import annotations

import base64
import math
from collections import defaultdict
from collections.abc import Sequence
from operator import mul
from typing import Final, NamedTuple

from PIL import Image

#: Larger pictures only take longer.
MOST_SIDE: Final = 100


class _Channel(NamedTuple):
    """Terms of one channel: the constant one, the others scaled to 0..1, and their scale."""

    constant: float
    terms: list[float]
    scale: float


def thumbhash(width: int, height: int, rgba: bytes) -> bytes:
    """The hash of a picture given as RGBA bytes, row by row."""
    if not (0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE):
        raise ValueError(f"a picture of {width}x{height} has no hash; {MOST_SIDE} is the most")
    lightness, yellow_blue, red_green, alpha = _channels(rgba)
    has_alpha = min(alpha) < 1.0
    longest = max(width, height)
    terms = 5 if has_alpha else 7
    across = max(1, _rounded(terms * width / longest))
    down = max(1, _rounded(terms * height / longest))
    is_landscape = width > height

    light = _cosine_transform(lightness, width, height, max(3, across), max(3, down))
    yellow = _cosine_transform(yellow_blue, width, height, 3, 3)
    red = _cosine_transform(red_green, width, height, 3, 3)
    head = (
        _rounded(63 * light.constant)
        | _rounded(31.5 + 31.5 * yellow.constant) << 6
        | _rounded(31.5 + 31.5 * red.constant) << 12
        | _rounded(31 * light.scale) << 18
        | has_alpha << 23
    )
    shape = (
        (down if is_landscape else across)
        | _rounded(63 * yellow.scale) << 3
        | _rounded(63 * red.scale) << 9
        | is_landscape << 15
    )
    hashed = bytearray(head.to_bytes(3, "little") + shape.to_bytes(2, "little"))
    halves = [*light.terms, *yellow.terms, *red.terms]
    if has_alpha:
        opacity = _cosine_transform(alpha, width, height, 5, 5)
        hashed.append(_rounded(15 * opacity.constant) | _rounded(15 * opacity.scale) << 4)
        halves += opacity.terms
    nibbles = [_rounded(15 * term) for term in halves]
    nibbles.append(0)  # pads an odd number
    hashed += bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2]))
    return bytes(hashed)


def _channels(rgba: bytes) -> tuple[list[float], list[float], list[float], list[float]]:
    """Brightness, yellow against blue, red against green, and alpha, of each pixel.

    Transparent parts are blended with the average colour.
    """
    alpha = [value / 255 for value in rgba[3::4]]
    visible = sum(alpha)
    weights = [value / 255 for value in alpha]
    red, green, blue = (list(map(mul, rgba[at::4], weights)) for at in range(3))
    if visible:
        averages = [sum(channel) / visible for channel in (red, green, blue)]
    else:
        averages = [0.0, 0.0, 0.0]
    if visible < len(alpha):
        red, green, blue = (
            [value + average * (1 - share) for value, share in zip(channel, alpha)]
            for channel, average in zip((red, green, blue), averages)
        )
    return (
        [(r + g + b) / 3 for r, g, b in zip(red, green, blue)],
        [(r + g) / 2 - b for r, g, b in zip(red, green, blue)],
        [r - g for r, g in zip(red, green)],
        alpha,
    )


def _cosine_transform(
    channel: Sequence[float], width: int, height: int, across: int, down: int
) -> _Channel:
    """The triangle of low-frequency terms; rows first, then columns."""
    rows = [channel[at : at + width] for at in range(0, width * height, width)]
    waves = [_wave(width, number) for number in range(across)]
    along = [[sum(map(mul, row, wave)) for row in rows] for wave in waves]
    constant, found = 0.0, []
    for y in range(down):
        wave = _wave(height, y)
        x = 0
        while x * down < across * (down - y):
            term = sum(map(mul, along[x], wave)) / (width * height)
            if x or y:
                found.append(term)
            else:
                constant = term
            x += 1
    scale = max(map(abs, found), default=0.0)
    if scale:
        found = [0.5 + 0.5 / scale * term for term in found]
    return _Channel(constant, found, scale)


def _wave(length: int, number: int) -> list[float]:
    return [math.cos(math.pi / length * number * (at + 0.5)) for at in range(length)]


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)


#: Both values are computed from a thumbnail of this size.
THUMBNAIL_SIDE: Final = 64
#: Colours that agree in the upper bits are grouped.
_UPPER_BITS: Final = 0b11100000
#: More transparent pixels are ignored.
_LEAST_ALPHA: Final = 128


class ImagePlaceholder(NamedTuple):
    """Preview of an image in its record."""

    thumbhash: str
    dominant_color: str


def make_placeholder(image: Image.Image) -> ImagePlaceholder:
    """Compute from an image in RGB or RGBA."""
    small = _shrink(image).convert("RGBA")
    pixels = small.tobytes()
    hashed = thumbhash(*small.size, pixels)
    return ImagePlaceholder(base64.b64encode(hashed).decode(), dominant_color(pixels))


def dominant_color(rgba: bytes) -> str:
    """Average of the most frequent group of colours, as `#rrggbb`; black if all is transparent."""
    alike: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for r, g, b, a in zip(rgba[::4], rgba[1::4], rgba[2::4], rgba[3::4]):
        if a >= _LEAST_ALPHA:
            alike[r & _UPPER_BITS, g & _UPPER_BITS, b & _UPPER_BITS].append((r, g, b))
    if not alike:
        return "#000000"
    most = max(alike.values(), key=len)
    return "#" + bytes(round(sum(part) / len(most)) for part in zip(*most)).hex()


def _shrink(image: Image.Image) -> Image.Image:
    longest = max(image.size)
    if longest <= THUMBNAIL_SIDE:
        return image
    width = max(1, round(image.width * THUMBNAIL_SIDE / longest))
    height = max(1, round(image.height * THUMBNAIL_SIDE / longest))
    factor = max(1, longest // (2 * THUMBNAIL_SIDE))
    return image.reduce(factor).resize((width, height), Image.Resampling.BOX)
