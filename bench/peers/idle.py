"""What each worker weighs when it has nothing to do: all started at once, then left alone."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack

from bench.peers.field import System
from bench.peers.measure import child, environment, memory_mb
from bench.server import BenchRedis


def weigh(redis: BenchRedis, systems: Iterable[System], after_s: float) -> dict[str, float]:
    """Megabytes by system; one that has ended meanwhile weighs nothing, and is left out."""
    redis.clear()
    with ExitStack() as stack:
        words = stack.enter_context(tempfile.TemporaryFile("w+"))
        workers = {
            system.key: stack.enter_context(
                child(system.worker, system.title, environment(redis, system), words, talks=False)
            )
            for system in systems
        }
        time.sleep(after_s)
        found = {}
        for key, worker in workers.items():
            try:
                worker.check()
                found[key] = memory_mb(worker.pid)
            except (RuntimeError, OSError):
                continue
        return found
