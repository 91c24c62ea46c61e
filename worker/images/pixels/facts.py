"""What stands for an image until it is there: a colour, and a few bytes that are almost it."""

from __future__ import annotations

import base64
from collections import defaultdict
from typing import Final, NamedTuple

from PIL import Image

from worker.images.pixels.thumbhash import thumbhash

#: Both are made of an image so small; they show nothing of what is finer.
SIDE: Final = 64
#: Colours whose upper bits agree are one colour.
_UPPER_BITS: Final = 0b11100000
#: Pixels that are more transparent have no colour.
_LEAST_ALPHA: Final = 128


class Facts(NamedTuple):
    """What a record has of an image's looks."""

    #: Base64.
    thumbhash: str
    #: `#rrggbb`.
    dominant_color: str


def facts_of(image: Image.Image) -> Facts:
    """Of an image in RGB or RGBA."""
    small = _small(image).convert("RGBA")
    pixels = small.tobytes()
    hashed = thumbhash(*small.size, pixels)
    return Facts(base64.b64encode(hashed).decode(), dominant_color(pixels))


def dominant_color(rgba: bytes) -> str:
    """The average of those colours that there are most of; black where all is transparent."""
    alike: dict[tuple[int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for r, g, b, a in zip(rgba[::4], rgba[1::4], rgba[2::4], rgba[3::4]):
        if a >= _LEAST_ALPHA:
            alike[r & _UPPER_BITS, g & _UPPER_BITS, b & _UPPER_BITS].append((r, g, b))
    if not alike:
        return "#000000"
    most = max(alike.values(), key=len)
    return "#" + bytes(round(sum(part) / len(most)) for part in zip(*most)).hex()


def _small(image: Image.Image) -> Image.Image:
    longest = max(image.size)
    if longest <= SIDE:
        return image
    width = max(1, round(image.width * SIDE / longest))
    height = max(1, round(image.height * SIDE / longest))
    factor = max(1, longest // (2 * SIDE))
    return image.reduce(factor).resize((width, height), Image.Resampling.BOX)
