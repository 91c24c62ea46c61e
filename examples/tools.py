"""Custom tools: `PYTHONPATH=examples WORKER_HANDLERS=tools python -m sluice.worker`.

Then call one directly, or let the model call it:

    curl -s localhost:8080/v1/jobs -H 'Content-Type: application/json' -d \
      '{"task": "tool", "payload": {"tool": "roll", "args": {"dice": 2}}}'
    curl -s localhost:8080/v1/jobs -H 'Content-Type: application/json' -d \
      '{"task": "chat", "payload": {"text": "Note: buy milk", "tools": ["take_note"]}}'

A tool is a function of a call and its arguments. The arguments are a pydantic model; its schema is
sent to the model server, and invalid arguments are refused before the tool is called. An async tool
shares the worker's event loop, a plain one runs in a thread and may block.

A worker may die during a call. Declare what should happen then:

- `repeatable=True`: call it again; a repetition is harmless.
- `takes_key=True`: call it again with the same `call.key`, by which the tool detects a repetition.
- neither: never call it again; the job or the model gets an error that the outcome is unknown.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from pydantic import BaseModel, Field

from sluice.worker import Call, JobError, ToolBox

NOTES = Path(os.environ.get("NOTES_DIR", "notes"))


class Dice(BaseModel):
    """Arguments of `roll`. The descriptions are for the model."""

    dice: int = Field(1, ge=1, le=100, description="Number of dice.")
    sides: int = Field(6, ge=2, le=1000, description="Sides per die.")


class Note(BaseModel):
    """Arguments of `take_note` and `delete_notes`."""

    text: str = Field(min_length=1, max_length=10_000)


class NoNotes(JobError):
    """Clients and the model get `{"kind": "no_notes", ...}`."""

    kind = "no_notes"


async def roll(call: Call, arguments: Dice) -> dict[str, list[int] | int]:
    """Rolls dice."""
    rolled = [random.randint(1, arguments.sides) for _ in range(arguments.dice)]
    return {"rolled": rolled, "sum": sum(rolled)}


def take_note(call: Call, arguments: Note) -> str:
    """Stores a note. A repeated call with the same key writes the same file."""
    NOTES.mkdir(parents=True, exist_ok=True)
    path = NOTES / f"{call.key.replace(':', '-')}.txt"
    path.write_text(arguments.text)
    return f"stored as {path.name}"


def delete_notes(call: Call, arguments: Note) -> int:
    """Deletes all notes with a text; returns the number. A repetition would return another one."""
    found = [path for path in NOTES.glob("*.txt") if arguments.text in path.read_text()]
    if not found:
        raise NoNotes(f"no note contains {arguments.text!r}")
    for path in found:
        path.unlink()
    return len(found)


def register_tools(toolbox: ToolBox) -> None:
    """Called once at start. A module may also have `register(registry)` for handlers."""
    toolbox.add(roll, repeatable=True)
    toolbox.add(take_note, takes_key=True)
    toolbox.add(delete_notes, timeout_s=5)
