"""A worker with this stops at every image, until a file says `go`."""

from __future__ import annotations

from tests.worker.images import doings
from worker.images import processing
from worker.registry import Registry


def register(registry: Registry) -> None:
    processing.process = doings.wait_for_go
