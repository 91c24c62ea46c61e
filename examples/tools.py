"""Tools of your own: `PYTHONPATH=examples WORKER_HANDLERS=tools python -m worker`.

Then call one by itself, or let the model call it:

    curl -s localhost:8080/v1/jobs -H 'Content-Type: application/json' -d \
      '{"task": "tool", "payload": {"tool": "roll", "args": {"dice": 2}}}'
    curl -s localhost:8080/v1/jobs -H 'Content-Type: application/json' -d \
      '{"task": "chat", "payload": {"text": "Note: buy milk", "tools": ["take_note"]}}'

A tool is a function of a call and its arguments. The arguments are a pydantic model, from which
the model server is told what it may send; what does not fit is refused before the tool is called.
An async tool shares the worker's loop, a plain one gets a thread and may block.

A worker may die in the middle of a call. Say what should happen then:

- `repeatable=True`: call it again, it does no harm.
- `takes_key=True`: call it again with the same `call.key`; the tool knows what it has done.
- neither: never call it again; the job, or the model, is told that the outcome is not known.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from pydantic import BaseModel, Field

from sluice.worker import Call, JobError, ToolBox

NOTES = Path(os.environ.get("NOTES_DIR", "notes"))


class Dice(BaseModel):
    """What `roll` takes. Descriptions are for the model."""

    dice: int = Field(1, ge=1, le=100, description="How many dice.")
    sides: int = Field(6, ge=2, le=1000, description="Sides of each.")


class Note(BaseModel):
    """What `take_note` and `delete_notes` take."""

    text: str = Field(min_length=1, max_length=10_000)


class NoNotes(JobError):
    """Seen by clients as `{"kind": "no_notes", ...}`, and by the model as well."""

    kind = "no_notes"


async def roll(call: Call, arguments: Dice) -> dict[str, list[int] | int]:
    """Rolls dice."""
    rolled = [random.randint(1, arguments.sides) for _ in range(arguments.dice)]
    return {"rolled": rolled, "sum": sum(rolled)}


def take_note(call: Call, arguments: Note) -> str:
    """Keeps a note. Called again with the same key it writes the same file: one note."""
    NOTES.mkdir(parents=True, exist_ok=True)
    path = NOTES / f"{call.key.replace(':', '-')}.txt"
    path.write_text(arguments.text)
    return f"kept as {path.name}"


def delete_notes(call: Call, arguments: Note) -> int:
    """Deletes all notes with such a text, and says how many. Twice would be a different number."""
    found = [path for path in NOTES.glob("*.txt") if arguments.text in path.read_text()]
    if not found:
        raise NoNotes(f"no note says {arguments.text!r}")
    for path in found:
        path.unlink()
    return len(found)


def register_tools(toolbox: ToolBox) -> None:
    """Called once at start. A module may have `register(registry)` for handlers beside it."""
    toolbox.add(roll, repeatable=True)
    toolbox.add(take_note, takes_key=True)
    toolbox.add(delete_notes, timeout_s=5)
