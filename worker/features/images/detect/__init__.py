"""What is found in an image and made unrecognisable: faces, number plates.

Imports nothing heavy: a worker may know about detection without the packages for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

    from worker.features.images.detect.choice import DetectorChoice


def find_and_blur(choice: DetectorChoice, image: Image) -> tuple[str, list[dict[str, Any]]]:
    """Make what is found in `image` unrecognisable there; who looked, and what it found."""
    from worker.features.images.detect import blur

    return blur.find_and_blur(choice, image)
