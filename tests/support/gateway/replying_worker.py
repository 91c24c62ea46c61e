"""A worker that needs no model: its answers and vectors are constant or hashes."""

from __future__ import annotations

import hashlib
from typing import Any

from sluice.common.process import runtime
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.context import JobContext
from sluice.worker.handlers import builtin
from sluice.worker.main import run_with
from sluice.worker.registry import Registry

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "cached_tokens": 0}


async def chat(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Answer "hello" in two pieces."""
    for n, delta in enumerate(("hel", "lo"), 1):
        data = {"delta": delta, "n": n, "attempt": context.attempt}
        await context.emit("message", data)
    return {"text": "hello", "finish_reason": "stop", "usage": USAGE, "ms": 0, "model": "none"}


async def embed(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Eight numbers for each text."""
    texts = payload.get("input", "")
    texts = [texts] if isinstance(texts, str) else texts
    digests = [hashlib.sha256(str(text).encode()).digest() for text in texts]
    vectors = [[byte / 255 for byte in digest[:8]] for digest in digests]
    return {"vectors": vectors, "dimensions": 8, "model": "none", "usage": USAGE, "ms": 0}


def run(settings: WorkerSettings) -> int:
    registry = Registry()
    builtin.register(registry, settings)
    registry.add("chat", chat)
    registry.add("embed", embed)
    return run_with(registry, settings)


if __name__ == "__main__":
    runtime.run_process(lambda: load_settings(WorkerSettings), run)
