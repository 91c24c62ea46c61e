"""Colours are preserved, however they were stored."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.files import bad_photos, color_profiles, photos
from tests.support.files.pixels import Make, near, refusal
from worker.features.images.pixels.color import to_srgb

PATCHES = [
    (200, 60, 50), (60, 180, 70), (50, 70, 200), (128, 128, 128), (230, 220, 60), (20, 30, 25),
]  # fmt: skip


def patches(colours: Sequence[tuple[int, ...]], mode: str = "RGB") -> Image.Image:
    """Patches side by side, 64 pixels each."""
    image = Image.new(mode, (64 * len(colours), 64))
    for at, colour in enumerate(colours):
        image.paste(colour, (64 * at, 0, 64 * at + 64, 64))
    return image


def centre(at: int, count: int) -> float:
    return (at + 0.5) / count


@pytest.mark.parametrize(
    ("kind", "gamut"),
    [*((kind, "p3") for kind in ("jpeg", "png", "webp", "avif", "tiff", "heic")),
     ("jpeg", "adobe"), ("tiff", "adobe")],
)  # fmt: skip
def test_wide_gamut(make: Make, kind: str, gamut: str) -> None:
    profile, meant = WIDE[gamut]
    options = {"jpeg": {"quality": 98}, "avif": {"quality": 98}, "heic": {"quality": 98}}
    given = options.get(kind, {"lossless": True} if kind == "webp" else {})
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
    source = photos.encoded(image, "png", icc_profile=color_profiles.display_p3())
    result = make(source)
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
    image = photos.harness(160, 120)
    plain = make(photos.encoded(image, "png"))
    tagged = make(photos.encoded(image, "png", icc_profile=color_profiles.plain_srgb()))
    assert plain.webp == tagged.webp


INKS = {
    "white": (0, 0, 0, 0),
    "cyan": (255, 0, 0, 0),
    "magenta": (0, 255, 0, 0),
    "yellow": (0, 0, 255, 0),
    "black": (0, 0, 0, 255),
}


@pytest.mark.parametrize("store", [photos.cmyk_jpeg, photos.ycck_jpeg], ids=["cmyk", "ycck"])
def test_inks_without_a_profile(make: Make, store: Callable[[Image.Image], bytes]) -> None:
    """In particular, not inverted."""
    inks = [*INKS.values(), (64, 128, 32, 20)]
    result = make(store(patches(inks, "CMYK")), "image/jpeg")
    wanted = [tuple((255 - ink) * (255 - k) / 255 for ink in (c, m, y)) for c, m, y, k in inks]
    check_patches(result, wanted, 10)


def test_inks_with_a_profile(make: Make) -> None:
    image = patches(list(INKS.values()), "CMYK")
    result = make(photos.cmyk_jpeg(image, color_profiles.coated_paper()), "image/jpeg")
    wanted = [color_profiles.lab_in_srgb(color_profiles.INKS[name]) for name in INKS]
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


def test_sixteen_bits(make: Make) -> None:
    result = make(photos.png_16_bit())
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        assert near(result.pixel(share, 0.5), (255 * share,) * 3, 5)
    result = make(photos.png_16_bit(colour=True))
    for share in (0.1, 0.5, 0.9):
        wanted = (255 * share, 255 * (1 - share), 255 * share)
        assert near(result.pixel(share, 0.5), wanted, 8)
    ramp = np.tile(np.linspace(0, 65535, 256).astype(np.uint16), (64, 1))
    result = make(photos.encoded(Image.fromarray(ramp), "tiff"))
    assert near(result.pixel(0.5, 0.5), (127.5,) * 3, 5)


def test_a_colour_declared_transparent(make: Make) -> None:
    image = Image.new("RGB", (64, 64), (10, 200, 30))
    image.paste((200, 10, 30), (32, 0, 64, 64))
    result = make(photos.encoded(image, "png", transparency=(10, 200, 30)))
    assert result.pixel(0.2, 0.5)[3] == 0
    assert near(result.pixel(0.8, 0.5), (200, 10, 30, 255), 8)


def test_alpha_is_kept_when_an_image_is_scaled(make: Make) -> None:
    """Invisible pixels do not affect the colour of their neighbours."""
    image = Image.new("RGBA", (3840, 64), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 1921, 64))
    result = make(photos.encoded(image, "png"))
    assert result.image.size == (1920, 32)
    edge = result.image.convert("RGBA").crop((955, 0, 965, 32))
    for red, _, blue, alpha in np.asarray(edge).reshape(-1, 4):
        assert alpha < 200 or (blue > 150 and red < 60)


def test_unsupported_colour_modes_are_refused(make: Make) -> None:
    image = Image.fromarray(np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64))
    assert refusal(make, photos.encoded(image, "tiff")) == (
        "DECODE_FAILED", "unsupported_color_mode", "color mode not supported",
    )  # fmt: skip


def check_patches(result: Any, wanted: Sequence[Any], within: float) -> None:
    for at, colour in enumerate(wanted):
        found = result.pixel(centre(at, len(wanted)), 0.5)
        assert near(found, colour, within), (at, found, colour)


WIDE = {
    "p3": (color_profiles.display_p3(), color_profiles.p3_in_srgb),
    "adobe": (color_profiles.adobe_rgb(), color_profiles.adobe_in_srgb),
}


def test_palettes_one_bit_and_grey(make: Make) -> None:
    result = make(photos.transparent_palette_png())
    assert result.made.details["has_alpha"] is True
    assert near(result.pixel(0.25, 0.25), (200, 40, 40, 255), 8)
    assert result.pixel(0.25, 0.75)[3] == 0
    assert near(result.pixel(0.75, 0.25), (0, 0, 255, 128), 8)
    result = make(photos.encoded(patches(PATCHES).quantize(16), "png"))
    assert result.made.details["has_alpha"] is False
    assert near(result.pixel(centre(2, 6), 0.5), PATCHES[2], 8)
    image = Image.new("1", (64, 64), 0)
    image.paste(1, (32, 0, 64, 64))
    for kind in ("png", "tiff"):
        result = make(photos.encoded(image, kind))
        assert near(result.pixel(0.2, 0.5), (0, 0, 0), 4)
        assert near(result.pixel(0.8, 0.5), (255, 255, 255), 4)
    result = make(photos.encoded(Image.new("LA", (64, 64), (180, 77)), "png"))
    assert near(result.pixel(0.5, 0.5), (180, 180, 180, 77), 5)
    # Alpha that hides nothing is dropped.
    result = make(photos.encoded(photos.harness(64, 48).convert("RGBA"), "png"))
    assert result.made.details["has_alpha"] is False
    assert result.image.mode == "RGB"
