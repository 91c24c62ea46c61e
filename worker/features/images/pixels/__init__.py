"""Images in, WebP out. Runs in a process of the pool; the worker itself knows only the order.

Nothing here imports Pillow before there is something to do with it: it is an extra.
"""

from __future__ import annotations

from worker.features.images.pixels.types import ProcessingRequest, ProcessingResult


def process(order: ProcessingRequest) -> ProcessingResult:
    """Make one image private and small, and note every stage on the way.

    Raises InvalidImage for what is wrong with the image, MemoryError where it takes too much
    memory, and OSError where its files cannot be read or written, which is no fault of the image.
    """
    from worker.features.images.pixels.pipeline import process_image

    return process_image(order)
