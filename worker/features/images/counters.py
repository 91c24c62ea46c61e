"""Image counters of a worker since its start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from common.contracts.images import ImageResultField, ImageResultStatus
from common.observability.heartbeats import ImagesReading
from worker.features.images.detect.choice import DetectorChoice


class ImageCounters:
    """Counters for the worker's heartbeat."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._under_way = 0
        self.processed = 0
        self.failed = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count an image that has a process or waits for one."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def ended(self, outcome: Mapping[str, Any]) -> None:
        """Count an image by the outcome in its result entry."""
        if outcome.get(ImageResultField.STATUS) == ImageResultStatus.PROCESSED.value:
            self.processed += 1
        else:
            self.failed += 1

    def reading(self, choice: DetectorChoice) -> ImagesReading:
        busy = min(self._under_way, self._slots)
        return ImagesReading(
            detector=choice.name,
            detector_why=choice.unavailable_reason,
            blur=choice.blur.value,
            places=self._slots,
            busy=busy,
            waiting=self._under_way - busy,
            processed=self.processed,
            failed=self.failed,
        )
