"""Custom handlers: `PYTHONPATH=examples WORKER_HANDLERS=handlers python -m sluice.worker`.

`chat` streams words from an async handler, `code` counts in a plain one, and `tool` fails with an
error kind that clients can rely on. Other tasks keep the built-in handler (echo).
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, Field

from sluice.worker import JobContext, JobError, Registry, ThreadJobContext


class Chat(BaseModel):
    """Payload of `chat`; anything else ends the job with `invalid_payload`."""

    text: str = Field(min_length=1)


class Count(BaseModel):
    """Payload of `code`."""

    upto: int = Field(ge=1, le=1000)


class NoSuchTool(JobError):
    """Clients get `{"kind": "no_such_tool", ...}`."""

    kind = "no_such_tool"


async def chat(context: JobContext, payload: Chat) -> dict[str, int]:
    """Streams the text back word by word."""
    words = payload.text.split()
    for word in words:
        await context.emit("message", {"text": word})
        await asyncio.sleep(0)
    return {"words": len(words)}


def count(context: ThreadJobContext, payload: Count) -> list[int]:
    """A plain function runs in a thread, so it may block."""
    for number in range(1, payload.upto + 1):
        context.emit("progress", {"at": number})
    return list(range(1, payload.upto + 1))


async def tool(context: JobContext, payload: dict[str, object]) -> None:
    """Fails with its own error kind."""
    raise NoSuchTool(f"unknown tool {payload.get('name')!r}")


def register(registry: Registry) -> None:
    """Called once at start."""
    registry.add("chat", chat)
    registry.add("code", count)
    registry.add("tool", tool)
