"""Generated ICC profiles, and reference conversions of their colors to sRGB."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import product

import numpy as np

Triple = tuple[float, float, float]

#: Columns: red, green, blue in XYZ, adapted to D50, as in profiles.
SRGB_TO_XYZ = (
    (0.43607, 0.38515, 0.14307),
    (0.22249, 0.71687, 0.06061),
    (0.01392, 0.09708, 0.71410),
)
P3_TO_XYZ = ((0.51512, 0.29198, 0.15710), (0.24120, 0.69225, 0.06657), (-0.00105, 0.04189, 0.78407))
ADOBE_TO_XYZ = (
    (0.60974, 0.20528, 0.14919),
    (0.31111, 0.62567, 0.06322),
    (0.01947, 0.06087, 0.74457),
)
D50 = (0.9642, 1.0, 0.8249)
ADOBE_GAMMA = 563 / 256
#: Approximate CIE Lab of inks on coated paper: white, cyan, magenta, yellow, black.
INKS: dict[str, Triple] = {
    "white": (95.0, 0.0, -2.0), "cyan": (55.0, -37.0, -50.0), "magenta": (48.0, 74.0, -3.0),
    "yellow": (89.0, -5.0, 93.0), "black": (16.0, 0.0, 0.0),
}  # fmt: skip


# -- profiles ------------------------------------------------------------------------------


def display_p3() -> bytes:
    """As embedded by a phone camera."""
    return _rgb_profile(P3_TO_XYZ, _curve_of_srgb(), b"Display P3 (secret profile name)")


def adobe_rgb() -> bytes:
    return _rgb_profile(ADOBE_TO_XYZ, _gamma(ADOBE_GAMMA), b"Adobe RGB (1998)")


def plain_srgb() -> bytes:
    return _rgb_profile(SRGB_TO_XYZ, _curve_of_srgb(), b"sRGB IEC61966-2.1")


def linear_gray() -> bytes:
    """Linear gray: 128 is much brighter than in sRGB."""
    return _profile(b"mntr", b"GRAY", b"XYZ ", b"Linear grey", {b"kTRC": _gamma(1.0)})


def coated_paper() -> bytes:
    """CMYK with a lookup table: inks and approximate mixtures."""
    return _profile(b"prtr", b"CMYK", b"Lab ", b"Coated", {b"A2B0": _table(5)})


def broken(profile: bytes) -> bytes:
    """A profile whose tags have invalid offsets."""
    return profile[:128] + struct.pack(">I", 9) + b"\xff" * (len(profile) - 132)


# -- reference conversions -----------------------------------------------------------------


def p3_in_srgb(pixel: Sequence[int]) -> Triple:
    light = [_srgb_to_light(value / 255) for value in pixel]
    return _srgb_of_xyz(np.dot(P3_TO_XYZ, light))


def adobe_in_srgb(pixel: Sequence[int]) -> Triple:
    light = [(value / 255) ** ADOBE_GAMMA for value in pixel]
    return _srgb_of_xyz(np.dot(ADOBE_TO_XYZ, light))


def linear_gray_in_srgb(value: int) -> float:
    return 255 * _light_to_srgb(value / 255)


def lab_in_srgb(lab: Sequence[float]) -> Triple:
    lightness, a, b = lab
    f = (lightness + 16) / 116
    parts = (f + a / 500, f, f - b / 200)
    xyz = [
        white * (part**3 if part > 6 / 29 else 3 * (6 / 29) ** 2 * (part - 4 / 29))
        for white, part in zip(D50, parts)
    ]
    return _srgb_of_xyz(xyz)


def _srgb_of_xyz(xyz: Sequence[float]) -> Triple:
    light = np.linalg.solve(np.array(SRGB_TO_XYZ), xyz)
    r, g, b = (255 * _light_to_srgb(min(1.0, max(0.0, value))) for value in light)
    return r, g, b


def _srgb_to_light(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _light_to_srgb(value: float) -> float:
    return value * 12.92 if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055


# -- profile format ------------------------------------------------------------------------


def _profile(
    kind: bytes, space: bytes, between: bytes, name: bytes, tags: dict[bytes, bytes]
) -> bytes:
    head = struct.pack(
        ">I4sI4s4s4s12s4s4sIIIQI3I4s44x",
        0, b"none", 0x02400000, kind, space, between, bytes(12), b"acsp", b"APPL", 0, 0, 0, 0, 0,
        *(round(value * 65536) for value in D50), b"none",
    )  # fmt: skip
    licence = b"text\0\0\0\0public domain\0"
    tags = {b"desc": _description(name), b"cprt": licence, b"wtpt": _xyz(D50), **tags}
    index, body = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        index += name + struct.pack(">II", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    whole = head + struct.pack(">I", len(tags)) + index + body
    return struct.pack(">I", len(whole)) + whole[4:]


def _rgb_profile(columns: Sequence[Sequence[float]], curve: bytes, name: bytes) -> bytes:
    tags = {}
    for at, channel in enumerate((b"r", b"g", b"b")):
        tags[channel + b"XYZ"] = _xyz([row[at] for row in columns])
        tags[channel + b"TRC"] = curve
    return _profile(b"mntr", b"RGB ", b"XYZ ", name, tags)


def _xyz(values: Sequence[float]) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(value * 65536) for value in values))


def _description(words: bytes) -> bytes:
    return b"desc\0\0\0\0" + struct.pack(">I", len(words) + 1) + words + bytes(1 + 4 + 4 + 3 + 67)


def _gamma(value: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(value * 256))


def _curve_of_srgb() -> bytes:
    values = [round(65535 * _srgb_to_light(at / 1023)) for at in range(1024)]
    return b"curv\0\0\0\0" + struct.pack(">I1024H", 1024, *values)


def _table(steps: int) -> bytes:
    """Lab of each mixture of inks: coverages multiply, as if printed on top of each other."""
    straight = bytes(range(256))
    cells = b""
    for mixture in product(range(steps), repeat=4):
        lab = list(INKS["white"])
        for ink, amount in zip(("cyan", "magenta", "yellow", "black"), mixture):
            share = amount / (steps - 1)
            printed = INKS[ink]
            shade = printed[0] / INKS["white"][0]
            over = (lab[0] * shade, lab[1] * shade + printed[1], lab[2] * shade + printed[2])
            if ink == "black":
                over = (lab[0] * shade, 0.0, 0.0)
            lab = [below * (1 - share) + above * share for below, above in zip(lab, over)]
        cells += bytes(
            min(255, max(0, round(value))) for value in (lab[0] * 2.55, lab[1] + 128, lab[2] + 128)
        )
    unchanged = struct.pack(">9i", *(65536 * (at % 4 == 0) for at in range(9)))
    return (
        b"mft1\0\0\0\0" + bytes([4, 3, steps, 0]) + unchanged + straight * 4 + cells + straight * 3
    )
