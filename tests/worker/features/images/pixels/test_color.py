"""Colours are preserved, however they were stored."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sluice.worker.features.images.pixels.color import to_srgb
from tests.support.files import bad_photos, color_profiles, photos
from tests.support.files.pixels import Make, near, refusal

PATCHES = [
    (200, 60, 50), (60, 180, 70), (50, 70, 200), (128, 128, 128), (230, 220, 60), (20, 30, 25),
]  # fmt: skip

WIDE = {
    "p3": (color_profiles.display_p3(), color_profiles.p3_in_srgb),
    "adobe": (color_profiles.adobe_rgb(), color_profiles.adobe_in_srgb),
}


def patches(colours: Sequence[tuple[int, ...]], mode: str = "RGB") -> Image.Image:
    """Patches side by side, 64 pixels each."""
    image = Image.new(mode, (64 * len(colours), 64))
    for at, colour in enumerate(colours):
        image.paste(colour, (64 * at, 0, 64 * at + 64, 64))
    return image


def centre(at: int, count: int) -> float:
    return (at + 0.5) / count


def check_patches(result: Any, wanted: Sequence[Any], within: float) -> None:
    for at, colour in enumerate(wanted):
        found = result.pixel(centre(at, len(wanted)), 0.5)
        assert near(found, colour, within), (at, found, colour)


@pytest.mark.parametrize(
    ("kind", "gamut"),
    [*((kind, "p3") for kind in ("jpeg", "png", "webp", "avif", "tiff", "heic")),
     ("jpeg", "adobe"), ("tiff", "adobe")],
)  # fmt: skip
def test_wide_gamut(make: Make, kind: str, gamut: str) -> None:
    profile, meant = WIDE[gamut]
    given = {"quality": 98} if kind in ("jpeg", "avif", "heic") else {}
    given = {"lossless": True} if kind == "webp" else given
    result = make(photos.encoded(patches(PATCHES), kind, icc_profile=profile, **given))
    wanted = [meant(colour) for colour in PATCHES]
    check_patches(result, wanted, 7)
    shifts = (abs(a - b) for one, other in zip(wanted, PATCHES) for a, b in zip(one, other))
    assert max(shifts) > 15  # fails without the conversion


def with_numbers(kind: str, image: Image.Image, primaries: int, transfer: int) -> bytes:
    """A file with colour codes and no profile."""
    if kind == "png":
        return bad_photos.png_with_more(b"cICP", bytes([primaries, transfer, 0, 1]), image)
    made = photos.encoded(image, kind, quality=98)
    at = made.index(b"colrnclx") + 8
    return made[:at] + struct.pack(">HH", primaries, transfer) + made[at + 4 :]


@pytest.mark.parametrize("kind", ["avif", "heic", "png"])
def test_wide_gamut_by_number(make: Make, kind: str) -> None:
    result = make(with_numbers(kind, patches(PATCHES), 12, 13))
    check_patches(result, [color_profiles.p3_in_srgb(colour) for colour in PATCHES], 8)
    widest = make(with_numbers(kind, patches(PATCHES), 9, 1)).pixel(centre(0, len(PATCHES)), 0.5)
    assert widest[0] > color_profiles.p3_in_srgb(PATCHES[0])[0]
    # sRGB, unspecified, HDR, and unassigned codes change nothing.
    for numbers in ((1, 13), (2, 2), (9, 16), (22, 13)):
        check_patches(make(with_numbers(kind, patches(PATCHES), *numbers)), PATCHES, 8)


def test_a_conversion_is_exact_before_it_is_encoded() -> None:
    lattice = list(product(range(5, 256, 25), repeat=3))
    image = Image.fromarray(np.array([lattice], dtype=np.uint8))
    for profile, meant in WIDE.values():
        found = np.asarray(to_srgb(image.copy(), profile), dtype=float)[0]
        wanted = np.array([meant(colour) for colour in lattice])
        inside = ((wanted > 1) & (wanted < 254)).all(axis=1)  # outside, gamut clipping differs
        assert inside.sum() > 30
        assert np.abs(found - wanted)[inside].max() <= 1.0


def test_alpha_survives_a_conversion(make: Make) -> None:
    image = patches(PATCHES)
    image.putalpha(Image.new("L", image.size, 128))
    result = make(photos.encoded(image, "png", icc_profile=color_profiles.display_p3()))
    found = result.pixel(centre(0, len(PATCHES)), 0.5)
    assert near(found[:3], color_profiles.p3_in_srgb(PATCHES[0]), 8)
    assert abs(found[3] - 128) <= 1


@pytest.mark.parametrize("broken", [
    b"", b"nonsense", color_profiles.broken(color_profiles.display_p3()),
    color_profiles.display_p3()[:200], color_profiles.linear_gray(), color_profiles.coated_paper(),
], ids=["empty", "nonsense", "no tags", "cut off", "grey", "cmyk"])  # fmt: skip
def test_an_unusable_profile_is_ignored(make: Make, broken: bytes) -> None:
    source = photos.encoded(patches(PATCHES), "png", icc_profile=broken)
    check_patches(make(source), PATCHES, 7)


def test_a_profile_of_srgb_itself_changes_nothing(make: Make) -> None:
    image = photos.scene(160, 120)
    plain = make(image)
    tagged = make(photos.encoded(image, "png", icc_profile=color_profiles.plain_srgb()))
    assert plain.webp == tagged.webp


#: In the order of `color_profiles.INKS`.
INKS = [(0, 0, 0, 0), (255, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0), (0, 0, 0, 255)]


@pytest.mark.parametrize("store", [photos.cmyk_jpeg, photos.ycck_jpeg], ids=["cmyk", "ycck"])
def test_inks_without_a_profile(make: Make, store: Callable[[Image.Image], bytes]) -> None:
    """In particular, not inverted."""
    inks = [*INKS, (64, 128, 32, 20)]
    result = make(store(patches(inks, "CMYK")), "image/jpeg")
    wanted = [tuple((255 - ink) * (255 - k) / 255 for ink in (c, m, y)) for c, m, y, k in inks]
    check_patches(result, wanted, 10)


def test_inks_with_a_profile(make: Make) -> None:
    image = patches(INKS, "CMYK")
    result = make(photos.cmyk_jpeg(image, color_profiles.coated_paper()), "image/jpeg")
    wanted = [color_profiles.lab_in_srgb(lab) for lab in color_profiles.INKS.values()]
    wanted[0] = (255, 255, 255)  # the white of paper is the white of the screen
    check_patches(result, wanted, 16)
    assert result.pixel(centre(1, len(INKS)), 0.5)[1] < 190  # pure cyan of the screen has 255


def test_grey_with_a_profile(make: Make) -> None:
    values = [16, 64, 128, 200]
    image = patches([(value,) for value in values], "L")
    profile = color_profiles.linear_gray()
    result = make(photos.encoded(image, "png", icc_profile=profile))
    check_patches(result, [(color_profiles.linear_gray_in_srgb(value),) * 3 for value in values], 6)
    image = Image.new("LA", (64, 64), (64, 100))
    result = make(photos.encoded(image, "png", icc_profile=profile))
    wanted = color_profiles.linear_gray_in_srgb(64)
    assert near(result.pixel(0.5, 0.5), (wanted, wanted, wanted, 100), 6)


def halves(mode: str, left: Any, right: Any) -> Image.Image:
    image = Image.new(mode, (64, 64), left)
    image.paste(right, (32, 0, 64, 64))
    return image


RAMP = np.tile(np.linspace(0, 65535, 256).astype(np.uint16), (64, 1))
BLACK_AND_WHITE = [(0.2, 0.5, (0, 0, 0)), (0.8, 0.5, (255, 255, 255))]
#: A source, and the colours at some positions within a tolerance; None is any value.
MODES: dict[str, tuple[Any, list[Any], float]] = {
    "16 bits": (photos.png_16_bit(),
        [(at, 0.5, (255 * at,) * 3) for at in (0.0, 0.25, 0.5, 0.75, 1.0)], 5),
    "16 bits, colour": (photos.png_16_bit(colour=True),
        [(at, 0.5, (255 * at, 255 * (1 - at), 255 * at)) for at in (0.1, 0.5, 0.9)], 8),
    "16 bits, tiff": (photos.encoded(Image.fromarray(RAMP), "tiff"), [(0.5, 0.5, (127.5,) * 3)], 5),
    "a transparent colour": (
        photos.encoded(halves("RGB", (10, 200, 30), (200, 10, 30)), "png",
                       transparency=(10, 200, 30)),
        [(0.2, 0.5, (None, None, None, 0)), (0.8, 0.5, (200, 10, 30, 255))], 8),
    "transparent palette": (photos.transparent_palette_png(),
        [(0.25, 0.25, (200, 40, 40, 255)), (0.25, 0.75, (None, None, None, 0)),
         (0.75, 0.25, (0, 0, 255, 128))], 8),
    "palette": (patches(PATCHES).quantize(16), [(centre(2, 6), 0.5, PATCHES[2])], 8),
    "1 bit": (halves("1", 0, 1), BLACK_AND_WHITE, 4),
    "1 bit, tiff": (photos.encoded(halves("1", 0, 1), "tiff"), BLACK_AND_WHITE, 4),
    "grey and alpha": (Image.new("LA", (64, 64), (180, 77)), [(0.5, 0.5, (180, 180, 180, 77))], 5),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb_with_or_without_alpha(make: Make, mode: str) -> None:
    source, wanted, tolerance = MODES[mode]
    result = make(source)
    for across, down, colour in wanted:
        found = result.pixel(across, down)
        assert near(found, colour, tolerance), (across, down, found, colour)
        assert len(found) == len(colour)
    assert result.details["has_alpha"] is (len(wanted[0][2]) == 4)


def test_alpha_that_hides_nothing_is_dropped(make: Make) -> None:
    result = make(photos.scene(64, 48).convert("RGBA"))
    assert result.details["has_alpha"] is False
    assert result.image.mode == "RGB"


def test_alpha_is_kept_when_an_image_is_scaled(make: Make) -> None:
    """Invisible pixels do not affect the colour of their neighbours."""
    image = Image.new("RGBA", (3840, 64), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 1921, 64))
    result = make(image)
    assert result.image.size == (1920, 32)
    edge = result.image.convert("RGBA").crop((955, 0, 965, 32))
    for red, _, blue, alpha in np.asarray(edge).reshape(-1, 4):
        assert alpha < 200 or (blue > 150 and red < 60)


def test_unsupported_colour_modes_are_refused(make: Make) -> None:
    image = Image.fromarray(np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64))
    assert refusal(make, photos.encoded(image, "tiff")) == (
        "DECODE_FAILED", "unsupported_color_mode", "color mode not supported",
    )  # fmt: skip
