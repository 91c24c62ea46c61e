"""Generated photographs, identical in each run, with as much detail as those of a camera."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFilter

#: Twelve megapixels, as of most phones; and the size that a chat client sends.
LARGE, SMALL = (4000, 3000), (1600, 1200)
_QUALITY = 88


def make(directory: Path, count: int, size: tuple[int, int]) -> list[Path]:
    return [_make(directory / f"{number:03d}.jpg", number, size) for number in range(count)]


def _make(path: Path, number: int, size: tuple[int, int]) -> Path:
    """Gradients, shapes and texture at several scales, which take time to encode."""
    picture = Image.merge("RGB", [_gradient(size, angle) for angle in (0, 90, 180)])
    draw = ImageDraw.Draw(picture)
    width, height = size
    for step in range(60):
        x, y = (step * 977 + number * 131) % width, (step * 613 + number * 71) % height
        radius = 40 + (step * 37 + number * 11) % (width // 8)
        colour = ((step * 53) % 256, (step * 91 + number * 17) % 256, (step * 29) % 256)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    picture = picture.filter(ImageFilter.GaussianBlur(1))
    for grain in (1, 6):
        texture = _texture(size, grain, number)
        picture = ImageChops.add(picture, Image.merge("RGB", [texture] * 3), 1, -12)
    picture.save(path, "JPEG", quality=_QUALITY)
    return path


def _gradient(size: tuple[int, int], angle: int) -> Image.Image:
    return Image.linear_gradient("L").rotate(angle).resize(size, Image.Resampling.BILINEAR)


def _texture(size: tuple[int, int], grain: int, number: int) -> Image.Image:
    """Noise that is hard to compress, tiled from a small texture."""
    tile = bytearray()
    state = 12345 + number * 7919 + grain
    for _ in range(256 * 256):
        state = (1103515245 * state + 12345) & 0x7FFFFFFF
        tile.append((state >> 16) % 25)
    scaled = Image.frombytes("L", (256, 256), bytes(tile))
    scaled = scaled.resize((256 * grain, 256 * grain), Image.Resampling.BICUBIC)
    texture = Image.new("L", size)
    for x in range(0, size[0], scaled.width):
        for y in range(0, size[1], scaled.height):
            texture.paste(scaled, (x, y))
    return texture
