"""Image processing: any supported format in, WebP out. Runs in a process of the pool.

Pillow is an optional extra, so nothing here imports it before an image is processed.
"""

from __future__ import annotations

from sluice.worker.features.images.pixels.types import ProcessingRequest, ProcessingResult


def process(order: ProcessingRequest) -> ProcessingResult:
    """Decode, anonymise, shrink and encode one image, and note each stage.

    Raises InvalidImage if the image is invalid, MemoryError if it needs too much memory, and
    OSError if its files cannot be read or written.
    """
    from sluice.worker.features.images.pixels.pipeline import process_image

    return process_image(order)
