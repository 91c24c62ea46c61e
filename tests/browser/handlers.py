"""What workers do in these tests: `chat` is the contract's echo, `plan` says words one by one,
`code` does as its payload says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from worker.context import JobContext
from worker.errors import TransientError
from worker.handlers import echo
from worker.registry import Registry


class OutOfPaper(TransientError):
    """One that ends among the dead letters, once it was tried often enough."""

    kind = "out_of_paper"


async def plan(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The words as a model says them. With a `gate`, each waits until the file has a line more."""
    words = str(payload.get("text", "")).split()
    for number, word in enumerate(words):
        await context.emit(
            "message", {"delta": word if number == 0 else f" {word}", "index": number}
        )
        gate = payload.get("gate")
        while gate and _lines(Path(gate)) <= number:
            await asyncio.sleep(0.02)
    return {"text": " ".join(words)}


async def code(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    # Whoever has seen to the cause leaves a file.
    if "fail" in payload and not Path(payload.get("mended", "/nowhere")).exists():
        raise OutOfPaper(str(payload["fail"]))
    if "wait" in payload:
        await context.emit("message", {"text": "waiting"})
        while not Path(payload["wait"]).exists():
            await asyncio.sleep(0.02)
    return {"did": payload}


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def register(registry: Registry) -> None:
    echoes = Registry()
    echo.register(echoes)
    registry.add("chat", echoes.resolve("chat").function)
    registry.add("plan", plan)
    registry.add("code", code, max_attempts=1)
