"""Runs the pipeline on bytes and examines the result."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image

from sluice.worker.features.images.pixels import process
from sluice.worker.features.images.pixels.formats import FORMATS
from sluice.worker.features.images.pixels.types import ImageLimits, InvalidImage, ProcessingRequest
from tests.support.files.photos import encoded

LIMITS = ImageLimits(
    max_bytes=10 << 20, max_pixels=10**8, formats=frozenset(FORMATS), max_width=1920, quality=85
)


class Result(NamedTuple):
    """A successful result, and the file."""

    made: Any
    webp: bytes

    @property
    def details(self) -> dict[str, Any]:
        return self.made.details

    @property
    def image(self) -> Image.Image:
        return Image.open(io.BytesIO(self.webp))

    def pixel(self, across: float, down: float) -> tuple[int, ...]:
        """The colour at a position, both coordinates from 0 to 1, averaged over a few pixels."""
        image = self.image
        x, y = (int(across * (image.width - 1)), int(down * (image.height - 1)))
        box = (max(0, x - 2), max(0, y - 2), min(image.width, x + 3), min(image.height, y + 3))
        return image.crop(box).resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))


Make = Callable[..., Result]


def maker(folder: Path) -> Make:
    def make(
        data: bytes | Image.Image,
        declared_type: str = "",
        limits: ImageLimits = LIMITS,
        **order: Any,
    ) -> Result:
        """Process a file, or an image as PNG."""
        source, output = folder / "upload", folder / "out.webp"
        source.write_bytes(encoded(data, "png") if isinstance(data, Image.Image) else data)
        output.unlink(missing_ok=True)
        made = process(ProcessingRequest(str(source), str(output), declared_type, limits, **order))
        return Result(made, output.read_bytes())

    return make


def refusal(make: Make, data: bytes, *arguments: Any, **order: Any) -> tuple[str, str, str]:
    """Code, reason and message of the refusal."""
    with pytest.raises(InvalidImage) as caught:
        make(data, *arguments, **order)
    return caught.value.code.value, caught.value.reason, caught.value.message


def chunks(webp: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a WebP; unknown chunks are an error."""
    kind, length, form = struct.unpack("<4sI4s", webp[:12])
    assert (kind, form) == (b"RIFF", b"WEBP")
    assert length + 8 == len(webp)
    at = 12
    while at < len(webp):
        name, size = struct.unpack("<4sI", webp[at : at + 8])
        yield name, webp[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    assert at == len(webp)


def near(found: tuple[int, ...], wanted: tuple[float | None, ...], tolerance: float) -> bool:
    """Whether each band of a colour is near; None is any value."""
    pairs = zip(found, wanted)
    return all(other is None or abs(one - other) <= tolerance for one, other in pairs)
