"""Worker handlers that process an image only after the file `go` exists."""

from __future__ import annotations

from tests.worker.features.images import process_stubs
from worker.features.images import processor
from worker.registry import Registry


def register(registry: Registry) -> None:
    processor.process = process_stubs.wait_for_go
