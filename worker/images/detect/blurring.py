"""Makes parts of an image unrecognisable, so that nothing can bring them back.

Whatever it looks like in the end, a part is first reduced to a few cells: what was between them is
gone. (A blur alone can be undone, more or less, by who knows its strength.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from PIL import Image, ImageFilter

from common.contracts.images import Blur
from worker.images.detect.boxes import Detection

#: What is around a find is taken along: so much of its width and height, on each side.
MARGIN: Final = 0.2
#: Cells along the longer side of a part, at most; and pixels of a cell, at least.
MOST_CELLS: Final = 8
LEAST_CELL: Final = 4
#: How soft the transitions between cells are, by the longer side.
_SOFTNESS: Final = 1 / 16


def blur(image: Image.Image, detections: Iterable[Detection], how: Blur) -> None:
    """Do it, in the image itself; transparency is reduced likewise."""
    if how is Blur.NONE:
        return
    for detection in detections:
        box = with_margin(detection, image.size)
        part = image.crop(box)
        image.paste(_reduced(part, how), box)


def with_margin(detection: Detection, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Corners of what is blurred."""
    across, down = round(detection.width * MARGIN), round(detection.height * MARGIN)
    return (
        max(0, detection.x - across),
        max(0, detection.y - down),
        min(size[0], detection.x + detection.width + across),
        min(size[1], detection.y + detection.height + down),
    )


def _reduced(part: Image.Image, how: Blur) -> Image.Image:
    longer = max(part.size)
    cells = max(1, min(MOST_CELLS, longer // LEAST_CELL))
    few = part.resize(
        (max(1, part.width * cells // longer), max(1, part.height * cells // longer)),
        Image.Resampling.BOX,
    )
    if how is Blur.PIXELATE:
        return few.resize(part.size, Image.Resampling.NEAREST)
    soft = few.resize(part.size, Image.Resampling.BICUBIC)
    return soft.filter(ImageFilter.GaussianBlur(max(1.0, longer * _SOFTNESS)))
