"""Handlers of the test worker: `chat` echoes, `plan` emits words one by one, `code` fails or waits
as its payload says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sluice.worker.errors import TransientError
from sluice.worker.execution.context import JobContext
from sluice.worker.handlers import echo
from sluice.worker.registry import Registry


class OutOfPaper(TransientError):
    """An error that dead-letters the job after its last attempt."""

    kind = "out_of_paper"


async def plan(context: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Emit the words of `text` one by one. Each word waits for another line in the file `gate`."""
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
    # The test removes the cause by creating the file `fixed_by`.
    if "fail" in payload and not Path(payload.get("fixed_by", "/nowhere")).exists():
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
