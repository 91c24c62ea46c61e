"""Fuzzing: any input gives an image or a refusal, nothing else."""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.files import photos
from tests.support.files.pixels import LIMITS, chunks, maker
from worker.features.images.pixels.types import InvalidImage

MODEST = replace(LIMITS, max_pixels=4_000_000)
#: First bytes of each format, so that random data passes the format check.
BEGINNINGS = (
    b"", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\x00\x10JFIF\0", b"\x89PNG\r\n\x1a\n", b"GIF89a",
    b"RIFF\xff\x00\x00\x00WEBPVP8 ", b"RIFF\xff\x00\x00\x00WEBPVP8X",
    b"RIFF\x40\x00\x00\x00WEBPVP8L", b"\x00\x00\x00\x18ftypavif\x00\x00\x00\x00mif1miaf",
    b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08",
)  # fmt: skip
ANIMATED = " animation"
TINY = (*photos.FORMATS, *(kind + ANIMATED for kind in ("gif", "webp", "png")))
#: Can be raised for long runs.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
USUAL = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@cache
def tiny(name: str) -> bytes:
    kind = name.removesuffix(ANIMATED)
    if kind != name:
        return photos.animation(kind, 3, (24, 16))
    return photos.photograph(kind, 6, 48, 32)


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
