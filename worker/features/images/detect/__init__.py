"""Detection of faces and number plates, and their blurring.

Imports nothing heavy: a worker can be configured without the packages for detection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

    from sluice.worker.features.images.detect.choice import DetectorChoice


def find_and_blur(choice: DetectorChoice, image: Image) -> tuple[str, list[dict[str, Any]]]:
    """Blur what is detected in `image`, in place.

    Returns the detector's name and the detections.
    """
    from sluice.worker.features.images.detect import blur

    return blur.find_and_blur(choice, image)
