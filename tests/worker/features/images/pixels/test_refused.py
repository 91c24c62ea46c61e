"""Refused images: code, reason and message, with bounded time and memory."""

from __future__ import annotations

import pickle
import resource
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from common.contracts.images import ErrorCode, FailureReason
from common.settings.images import ImageWorkerSettings
from tests.support.files import bad_photos, photos
from tests.support.files.photos import CONTENT_TYPES, FORMATS, photograph
from tests.support.files.pixels import LIMITS, Make, refusal
from worker.features.images.detect.choice import Detector, DetectorChoice
from worker.features.images.pixels import formats, pipeline, process
from worker.features.images.pixels.types import (
    REASON_MESSAGES,
    ImageLimits,
    InvalidImage,
    ProcessingRequest,
)

DIMENSIONS = ("DECODE_FAILED", "dimensions_exceed_limit", "image dimensions exceed limit")
UNSUPPORTED = ("VALIDATION_FAILED", "unsupported_format", "unsupported format")
MISMATCH = ("VALIDATION_FAILED", "type_mismatch", "magic bytes do not match declared type")
TRUNCATED = ("DECODE_FAILED", "truncated", "image file is truncated")
DAMAGED = ("DECODE_FAILED", "damaged", "image file is damaged")
FRAMES = ("DECODE_FAILED", "too_many_frames", "animation has too many frames")


@pytest.mark.parametrize(
    "data", [bad_photos.HTML, bad_photos.SVG, b"\0", b"BM" + bytes(100), b"%PDF-1.4", b"RIFF",
             b"\0\0\0\x18ftypisom\0\0\0\0isommp42", b"\0\0\0\x0cftyp", b"\xff\xd8"]
)  # fmt: skip
def test_unsupported_data(make: Make, data: bytes) -> None:
    assert refusal(make, data, "image/jpeg") == UNSUPPORTED
    assert refusal(make, data) == UNSUPPORTED


@pytest.mark.parametrize("kind", FORMATS)
def test_the_declared_type_may_be_right_or_missing(make: Make, kind: str) -> None:
    photo = photograph(kind, width=64, height=48)
    for declared in (CONTENT_TYPES[kind], "", "application/octet-stream"):
        assert make(photo, declared).made.details["source_format"] == kind
    assert make(photo, f"{CONTENT_TYPES[kind].upper()}; charset=binary")


def test_disabled_formats(make: Make) -> None:
    usual = ImageLimits.of(ImageWorkerSettings())
    assert usual.formats == {"jpeg", "png", "webp", "gif", "avif"}
    for kind in ("tiff", "heic"):
        assert refusal(make, photograph(kind), CONTENT_TYPES[kind], limits=usual) == UNSUPPORTED
    only = replace(LIMITS, formats=frozenset({"png"}))
    assert refusal(make, photograph("jpeg"), "image/jpeg", limits=only) == UNSUPPORTED


def test_heic_without_its_package(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    there = formats.importlib.util.find_spec

    def without(name: str) -> object:
        return None if name == "pillow_heif" else there(name)

    monkeypatch.setattr(formats.importlib.util, "find_spec", without)
    assert refusal(make, photograph("heic"), "image/heic") == UNSUPPORTED
    assert "sluice[heic]" in formats.missing_package(["jpeg", "heic"])
    assert formats.missing_package(["jpeg"]) == ""
    monkeypatch.setattr(formats.importlib.util, "find_spec", lambda name: None)
    assert "sluice[images]" in formats.missing_package(["jpeg"])


def test_settings_name_formats_that_there_are() -> None:
    with pytest.raises(ValueError, match="IMAGE_FORMATS has bmp; known are avif, gif"):
        ImageLimits.of(ImageWorkerSettings(image_formats="jpeg, bmp"))
    with pytest.raises(ValueError, match="IMAGE_FORMATS is empty"):
        ImageLimits.of(ImageWorkerSettings(image_formats=" ,"))
    chosen = ImageLimits.of(ImageWorkerSettings(image_formats=" JPEG ,heic"))
    assert chosen.formats == {"jpeg", "heic"}


@pytest.mark.parametrize("kind", FORMATS)
def test_cut_off(make: Make, kind: str) -> None:
    found = refusal(make, bad_photos.truncated(kind))
    assert found in (TRUNCATED, DAMAGED)
    assert (found == TRUNCATED) == (kind != "tiff")  # the directory of a TIFF is at its end
    for length in (16, 20, 30, 40):  # in its header
        code, reason, _ = refusal(make, photograph(kind)[:length])
        assert code in ("DECODE_FAILED", "VALIDATION_FAILED")
        assert reason in ("truncated", "damaged", "unsupported_format")
    found = refusal(make, photograph(kind)[:64] + b"\xa5" * 5000)
    assert found in (DAMAGED, TRUNCATED, DIMENSIONS)


def tiff_bomb() -> bytes:
    made = bytearray(photos.encoded(photos.harness(64, 48), "tiff"))
    for tag in (256, 257):  # width and height
        at = made.index(struct.pack("<HH", tag, 4))
        made[at + 8 : at + 12] = struct.pack("<I", 60_000)
    return bytes(made)


BOMBS: dict[str, Callable[[], bytes]] = {
    "png by header": bad_photos.png_bomb_by_header,
    "png on its side": lambda: bad_photos.png_bomb_by_header(2_000_000_000, 1),
    "png, real": bad_photos.real_png_bomb,
    "jpeg": bad_photos.jpeg_bomb,
    "gif": bad_photos.gif_bomb,
    "webp": bad_photos.webp_bomb,
    "avif": bad_photos.avif_bomb,
    "avif of a size that the library would take": lambda: bad_photos.avif_bomb(12_000),
    "heic": bad_photos.heic_bomb,
    "tiff": tiff_bomb,
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(make: Make, name: str) -> None:
    bomb = BOMBS[name]()
    assert len(bomb) < 1_000_000
    make(photograph(width=64, height=48))  # load the libraries
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    assert refusal(make, bomb) == DIMENSIONS
    assert time.monotonic() - began < 1.0
    risen_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert risen_kb < 8 * 1024


def test_oversized_images_are_refused_before_the_library_runs(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bombs = (bad_photos.webp_bomb(12_000), bad_photos.avif_bomb(), bad_photos.heic_bomb())

    def asked(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Image, "open", asked)
    for bomb in bombs:
        assert refusal(make, bomb) == DIMENSIONS


def test_the_limit_is_the_limit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = photos.encoded(photos.harness(100, 60), "png")
    assert make(photo, limits=replace(LIMITS, max_pixels=6000))
    # Pillow only warns up to twice the limit.
    assert refusal(make, photo, limits=replace(LIMITS, max_pixels=5999)) == DIMENSIONS
    assert refusal(make, photo, limits=replace(LIMITS, max_pixels=100)) == DIMENSIONS
    # Sides have a limit of their own.
    for size in ((65_536, 1), (1, 65_536)):
        assert refusal(make, photos.encoded(Image.new("L", size), "png")) == DIMENSIONS
    assert make(photos.encoded(Image.new("L", (65_535, 1)), "png")).made.width == 1920
    # Pillow's own limit is not used, and restored.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert make(photo).made.original_width == 100
    assert Image.MAX_IMAGE_PIXELS == 1000


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_frames(make: Make, kind: str) -> None:
    assert make(photos.animation(kind, 60)).made.details["source_frames"] == 60
    assert refusal(make, photos.animation(kind, 61)) == FRAMES
    if kind == "gif":  # a million frames take no time
        assert make(bad_photos.gif_of_frames(60)).made.details["source_frames"] == 60
        many = bad_photos.gif_of_frames(600_000)
        began = time.monotonic()
        assert refusal(make, many) == FRAMES
        assert time.monotonic() - began < 1.0


def test_a_text_in_a_png_that_unpacks_to_too_much(make: Make) -> None:
    packed = b"Comment\0\0" + zlib.compress(bytes(20 * 1024 * 1024), 1)
    bomb = bad_photos.png_with_more(b"zTXt", packed)
    assert refusal(make, bomb) == DAMAGED


def test_an_error_of_the_detector(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no model at /somewhere")

    monkeypatch.setattr(pipeline, "find_and_blur", fails)
    choice = DetectorChoice(Detector.CENTERFACE, "model.onnx")
    assert make(photograph(), detector=choice).made.details["detector"] == "none"
    with pytest.raises(InvalidImage) as caught:
        make(photograph(), detect=True, detector=choice)
    assert caught.value.code is ErrorCode.PROCESSING_FAILED
    assert (caught.value.reason, caught.value.message) == ("detection_failed", "detection failed")
    assert caught.value.cause == "RuntimeError: no model at /somewhere"


def test_a_refusal_can_be_pickled() -> None:
    error = InvalidImage(ErrorCode.DECODE_FAILED, "damaged", "image file is damaged", "OSError: x")
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert str(again) == "image file is damaged"
    assert set(REASON_MESSAGES) == set(FailureReason)


def test_empty_oversized_and_mismatched_files(make: Make, tmp_path: Path) -> None:
    assert refusal(make, b"") == ("VALIDATION_FAILED", "file_empty", "file is empty")
    assert not (tmp_path / "out.webp").exists()
    photo = photograph()
    tight = replace(LIMITS, max_bytes=len(photo))
    found = refusal(make, photo + b"\0", limits=tight)
    assert found == ("VALIDATION_FAILED", "file_too_large", "file too large")
    assert make(photo, limits=tight)
    for kind, declared in (
        ("png", "image/jpeg"),
        ("jpeg", "image/png"),
        ("avif", "image/heic"),
        ("jpeg", "text/html"),
        ("jpeg", "image/svg+xml"),
    ):
        assert refusal(make, photograph(kind), declared) == MISMATCH


def test_other_errors_are_not_invalid_images(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("encoder error -2")

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    photo = photograph()
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", fails)
        found = refusal(make, photo)
    assert found == ("ENCODING_FAILED", "not_encodable", "image could not be encoded")
    monkeypatch.setattr(Image.Image, "resize", no_memory)
    with pytest.raises(MemoryError):
        make(photo)
    order = ProcessingRequest(str(tmp_path / "gone"), str(tmp_path / "out"), "", LIMITS)
    with pytest.raises(FileNotFoundError):
        process(order)
