"""Photographs and models for the tests of detection."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw

from common.contracts.images import Blur, Detector
from common.settings.models_dir import FACES_FILE, models_dir
from tests.support.servers import missing
from worker.features.images.detect.choice import DetectorChoice

#: Position of the face: left, top, right, bottom.
FACE = (103, 60, 190, 175)


def astronaut() -> Image.Image:
    """A portrait; see astronaut.md."""
    return Image.open(Path(__file__).with_name("astronaut.jpg")).convert("RGB")


def on_canvas(size: tuple[int, int], at: tuple[int, int] = (40, 40)) -> Image.Image:
    """The portrait on a plain background."""
    canvas = Image.new("RGB", size, (90, 120, 150))
    canvas.paste(astronaut(), at)
    return canvas


def landscape() -> Image.Image:
    """Hills under a sun, without faces."""
    image = Image.new("RGB", (800, 500), (140, 180, 230))
    draw = ImageDraw.Draw(image)
    draw.polygon(
        [(0, 350), (250, 220), (500, 360), (800, 260), (800, 500), (0, 500)], (60, 120, 50)
    )
    draw.ellipse((600, 40, 700, 140), (250, 230, 120))
    return image


def centerface(blur: Blur = Blur.PIXELATE, size: int = 320) -> DetectorChoice:
    """The installed model; skips the test if it is missing (fails in CI)."""
    path = models_dir() / FACES_FILE
    if not path.is_file():
        missing("CenterFace is not installed: make model-install")
    return DetectorChoice(Detector.CENTERFACE, str(path), size=size, blur=blur)
