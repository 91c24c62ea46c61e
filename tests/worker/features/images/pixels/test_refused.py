"""Refused images: code, reason and message, with bounded time and memory."""

from __future__ import annotations

import contextlib
import os
import resource
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sluice.common.contracts.images import ErrorCode, FailureReason
from sluice.common.settings.images import ImageWorkerSettings
from sluice.worker.features.images.detect.choice import Detector, DetectorChoice
from sluice.worker.features.images.pixels import formats, pipeline, process, types
from sluice.worker.features.images.pixels.types import ImageLimits, InvalidImage, ProcessingRequest
from tests.support.files import bad_photos, photos
from tests.support.files.photos import CONTENT_TYPES, FORMATS, photograph
from tests.support.files.pixels import LIMITS, Make, chunks, maker, refusal


def raising(error: Exception) -> Callable[..., Any]:
    """A function that always fails."""

    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


DIMENSIONS = ("DECODE_FAILED", "dimensions_exceed_limit", "image dimensions exceed limit")
UNSUPPORTED = ("VALIDATION_FAILED", "unsupported_format", "unsupported format")
MISMATCH = ("VALIDATION_FAILED", "type_mismatch", "magic bytes do not match declared type")
TRUNCATED = ("DECODE_FAILED", "truncated", "image file is truncated")
DAMAGED = ("DECODE_FAILED", "damaged", "image file is damaged")
FRAMES = ("DECODE_FAILED", "too_many_frames", "animation has too many frames")


@pytest.mark.parametrize(
    "data", [b"<!DOCTYPE html><html><script>alert(1)</script></html>",
             b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
             b"\0", b"BM" + bytes(100), b"%PDF-1.4", b"RIFF",
             b"\0\0\0\x18ftypisom\0\0\0\0isommp42", b"\0\0\0\x0cftyp", b"\xff\xd8"]
)  # fmt: skip
def test_unsupported_data(make: Make, data: bytes) -> None:
    assert refusal(make, data, "image/jpeg") == UNSUPPORTED
    assert refusal(make, data) == UNSUPPORTED


@pytest.mark.parametrize("kind", FORMATS)
def test_the_declared_type_may_be_right_or_missing(make: Make, kind: str) -> None:
    photo = photograph(kind, width=64, height=48)
    for declared in (CONTENT_TYPES[kind], "", "application/octet-stream"):
        assert make(photo, declared).details["source_format"] == kind
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
    "tiff": bad_photos.tiff_bomb,
}


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(make: Make, name: str) -> None:
    bomb = BOMBS[name]()
    assert len(bomb) < 1_000_000
    make(photograph(width=64, height=48))  # load the libraries
    before_kb, began = peak_kb(), time.monotonic()
    assert refusal(make, bomb) == DIMENSIONS
    assert time.monotonic() - began < 1.0
    assert peak_kb() - before_kb < 8 * 1024


def test_oversized_images_are_refused_before_the_library_runs(make: Make, monkeypatch: Any) -> None:
    bombs = (bad_photos.webp_bomb(12_000), bad_photos.avif_bomb(), bad_photos.heic_bomb())
    monkeypatch.setattr(Image, "open", raising(AssertionError()))
    for bomb in bombs:
        assert refusal(make, bomb) == DIMENSIONS


def test_the_limit_is_the_limit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = photos.encoded(photos.scene(100, 60), "png")
    assert make(photo, limits=replace(LIMITS, max_pixels=6000))
    # Pillow only warns up to twice the limit.
    assert refusal(make, photo, limits=replace(LIMITS, max_pixels=5999)) == DIMENSIONS
    assert refusal(make, photo, limits=replace(LIMITS, max_pixels=100)) == DIMENSIONS
    # Sides have a separate limit.
    for size in ((65_536, 1), (1, 65_536)):
        assert refusal(make, Image.new("L", size)) == DIMENSIONS
    assert make(Image.new("L", (65_535, 1))).made.width == 1920
    # Pillow's own limit is not used, and restored.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert make(photo).made.original_width == 100
    assert Image.MAX_IMAGE_PIXELS == 1000


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_frames(make: Make, kind: str) -> None:
    assert make(photos.animation(kind, 60)).details["source_frames"] == 60
    assert refusal(make, photos.animation(kind, 61)) == FRAMES
    if kind == "gif":  # a million frames take no time
        assert make(bad_photos.gif_of_frames(60)).details["source_frames"] == 60
        many = bad_photos.gif_of_frames(600_000)
        began = time.monotonic()
        assert refusal(make, many) == FRAMES
        assert time.monotonic() - began < 1.0


def test_a_text_in_a_png_that_unpacks_to_too_much(make: Make) -> None:
    packed = b"Comment\0\0" + zlib.compress(bytes(20 * 1024 * 1024), 1)
    bomb = bad_photos.png_with_more(b"zTXt", packed)
    assert refusal(make, bomb) == DAMAGED


def test_an_error_of_the_detector(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("no model at /somewhere")
    monkeypatch.setattr(pipeline, "find_and_blur", raising(error))
    choice = DetectorChoice(Detector.CENTERFACE, "model.onnx")
    assert make(photograph(), detector=choice).details["detector"] == "none"
    with pytest.raises(InvalidImage) as caught:
        make(photograph(), detect=True, detector=choice)
    assert caught.value.code is ErrorCode.PROCESSING_FAILED
    assert (caught.value.reason, caught.value.message) == ("detection_failed", "detection failed")
    assert caught.value.cause == "RuntimeError: no model at /somewhere"


def test_a_refusal_can_be_created_again() -> None:
    error = InvalidImage("DECODE_FAILED", "damaged", "OSError: x")
    create, arguments = error.__reduce__()
    again = create(*arguments)
    assert vars(again) == vars(error)
    assert (again.code, again.cause) == (ErrorCode.DECODE_FAILED, "OSError: x")
    for code, reason in (("DECODE_FAILED", "hostile"), ("HOSTILE", "damaged")):
        with pytest.raises(ValueError, match="is not a valid"):
            InvalidImage(code, reason)
    assert str(again) == "image file is damaged"
    assert set(types.REASON_MESSAGES) == set(FailureReason)


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


def test_other_errors_are_not_invalid_images(make: Make, monkeypatch: Any, tmp_path: Path) -> None:
    photo = photograph()
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "save", raising(OSError("encoder error -2")))
        found = refusal(make, photo)
    assert found == ("ENCODING_FAILED", "not_encodable", "image could not be encoded")
    monkeypatch.setattr(Image.Image, "resize", raising(MemoryError()))
    with pytest.raises(MemoryError):
        make(photo)
    order = ProcessingRequest(str(tmp_path / "gone"), str(tmp_path / "out"), "", LIMITS)
    with pytest.raises(FileNotFoundError):
        process(order)


# -- fuzzing: any input gives an image or a refusal, nothing else ----------------------------

MODEST = replace(LIMITS, max_pixels=4_000_000)
#: First bytes of each format, so that random data passes the format check.
BEGINNINGS = (
    b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\x00\x10JFIF\0", b"\x89PNG\r\n\x1a\n", b"GIF89a",
    b"RIFF\xff\x00\x00\x00WEBPVP8 ", b"RIFF\xff\x00\x00\x00WEBPVP8X",
    b"RIFF\x40\x00\x00\x00WEBPVP8L", b"\x00\x00\x00\x18ftypavif\x00\x00\x00\x00mif1miaf",
    b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08",
)  # fmt: skip
ANIMATED = " animation"
TINY = (*FORMATS, *(kind + ANIMATED for kind in ("gif", "webp", "png")))
#: Can be raised for long runs.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
USUAL = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def tiny(name: str) -> bytes:
    if name.endswith(ANIMATED):
        return photos.animation(name.removesuffix(ANIMATED), 3, (24, 16))
    return photograph(name, 6, 48, 32)


def attempt(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(InvalidImage):
        webp = maker(Path(folder))(data, limits=MODEST).webp
        names = [name for name, _ in chunks(webp)]
        assert names in ([b"VP8 "], [b"VP8X", b"ALPH", b"VP8 "])


@USUAL
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=400))
def test_random_bytes(beginning: bytes, rest: bytes) -> None:
    attempt(beginning + rest)


@pytest.mark.slow("150 damaged files of each format")
@pytest.mark.parametrize("name", TINY)
@USUAL
@given(st.data())
def test_real_files_with_faults(name: str, data: st.DataObject) -> None:
    attempt(damage(bytearray(tiny(name)), data))


def damage(changed: bytearray, data: st.DataObject) -> bytes:
    last = len(changed) - 1
    for _ in range(data.draw(st.integers(1, 6))):
        # Most faults are possible in headers.
        at = data.draw(st.integers(0, min(last, 400)) | st.integers(0, last))
        kind = data.draw(st.sampled_from(("byte", "cut", "insert", "zeros", "ones")))
        if kind == "byte":
            changed[at : at + 1] = data.draw(st.binary(min_size=1, max_size=4))
        elif kind == "cut":
            del changed[at : at + data.draw(st.integers(1, 200))]
        elif kind == "insert":
            changed[at:at] = data.draw(st.binary(max_size=30))
        else:
            changed[at : at + 4] = (b"\0" if kind == "zeros" else b"\xff") * 4
        last = max(0, len(changed) - 1)
    return bytes(changed)


@settings(USUAL, max_examples=40)
@given(st.sampled_from(sorted(TINY)), st.data())
def test_some_real_files_with_faults(name: str, data: st.DataObject) -> None:
    attempt(damage(bytearray(tiny(name)), data))
