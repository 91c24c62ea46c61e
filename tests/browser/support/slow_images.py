"""Worker handlers that process an image only after the file `go` exists."""

from __future__ import annotations

from sluice.worker.features.images import processor
from sluice.worker.registry import Registry
from tests.support.worker import image_processes


def register(registry: Registry) -> None:
    processor.process = image_processes.wait_for_go
