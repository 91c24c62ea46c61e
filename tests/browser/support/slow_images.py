"""Worker handlers that process an image only after the file `go` exists."""

from __future__ import annotations

from tests.support.worker import image_processes
from worker.features.images import processor
from worker.registry import Registry


def register(registry: Registry) -> None:
    processor.process = image_processes.wait_for_go
