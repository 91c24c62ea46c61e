"""Wide colours without a profile: AVIF, HEIC and PNG may just say by number which ones they have.

The numbers are those of ITU-T H.273. What is brighter than a screen (PQ, HLG) is left as it is.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import IO, Final, NamedTuple

Columns = tuple[tuple[float, float, float], ...]

#: Red, green and blue as XYZ, for the white that profiles are about (D50).
_IN_XYZ: Final[dict[int, Columns]] = {
    9: ((0.67346, 0.27904, -0.00193), (0.16568, 0.67535, 0.02998), (0.12505, 0.04561, 0.79686)),
    12: ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407)),
}
#: Transfers that look like sRGB's, or are it; 2 says nothing.
_LIKE_SRGB: Final = frozenset({1, 2, 6, 13, 14, 15})
#: Its exponent, and the rest of its formula, as a profile's parametric curve has them.
_SRGB_CURVE: Final = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)
_D50: Final = (0.96420, 1.0, 0.82491)
#: Where boxes say it, and how a box that does goes on.
_BOX: Final = b"colrnclx"
_MOST_HEAD_BYTES: Final = 1024 * 1024


class Named(NamedTuple):
    """What a file says of its colours."""

    primaries: int
    transfer: int


def profile_of(path: str, format: str) -> bytes | None:
    """A profile for a file that only has numbers; None where it has none, or sRGB's."""
    with open(path, "rb") as file:
        if format in ("avif", "heic"):
            named = _in_boxes(file.read(_MOST_HEAD_BYTES))
        elif format == "png":
            named = _in_chunks(file)
        else:
            return None
    if named is None or named.transfer not in _LIKE_SRGB or named.primaries not in _IN_XYZ:
        return None
    return _profile(named.primaries)


def _in_boxes(head: bytes) -> Named | None:
    at = head.find(_BOX)
    numbers = head[at + 8 : at + 12]
    if at < 0 or len(numbers) < 4:
        return None
    return Named(*struct.unpack(">HH", numbers))


def _in_chunks(file: IO[bytes]) -> Named | None:
    """It must stand before the pixels."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", head)
        if name == b"cICP" and length == 4:
            numbers = file.read(2)
            return Named(*numbers) if len(numbers) == 2 else None
        if name in (b"IDAT", b"IEND"):
            break
        file.seek(length + 4, 1)
    return None


@cache
def _profile(primaries: int) -> bytes:
    """The least that a colour library needs to know."""
    curve = b"para\0\0\0\0" + struct.pack(">HH5i", 3, 0, *map(_fixed, _SRGB_CURVE))
    tags = {b"wtpt": _xyz(_D50)}
    for letter, column in zip((b"r", b"g", b"b"), _IN_XYZ[primaries]):
        tags[letter + b"XYZ"] = _xyz(column)
        tags[letter + b"TRC"] = curve
    index, body = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        index += name + struct.pack(">II", start + len(body), len(content))
        body += content
    head = struct.pack(
        ">I4xI4s4s4s12x4s28x3i48x",
        start + len(body), 0x04200000, b"mntr", b"RGB ", b"XYZ ", b"acsp", *map(_fixed, _D50),
    )  # fmt: skip
    return head + struct.pack(">I", len(tags)) + index + body


def _xyz(values: tuple[float, float, float]) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *map(_fixed, values))


def _fixed(value: float) -> int:
    return round(value * 65536)
