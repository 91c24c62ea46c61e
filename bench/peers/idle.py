"""Memory of idle workers: all are started at once and then left idle."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack

from bench.peers.field import System
from bench.peers.measure import child, environment, memory_mb
from bench.server import BenchRedis


def measure_idle(redis: BenchRedis, systems: Iterable[System], after_s: float) -> dict[str, float]:
    """Megabytes by system; systems whose worker has exited are left out."""
    redis.clear()
    with ExitStack() as stack:
        output = stack.enter_context(tempfile.TemporaryFile("w+"))
        workers = {
            system.key: stack.enter_context(
                child(system.worker, system.title, environment(redis, system), output, talks=False)
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
