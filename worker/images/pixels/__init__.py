"""Images in, WebP out. Runs in a process of the pool; the worker itself knows only the order.

Nothing here imports Pillow before there is something to do with it: it is an extra.
"""

from __future__ import annotations

from worker.images.pixels.order import Limits, Made, Order, Refused

__all__ = ["Limits", "Made", "Order", "Refused", "process"]


def process(order: Order) -> Made:
    """Make one image private and small, and note every stage on the way.

    Raises Refused for what is wrong with the image, MemoryError where it takes too much memory,
    and OSError where its files cannot be read or written, which is no fault of the image.
    """
    from worker.images.pixels.pipeline import run

    return run(order)
