"""What a tool returned, as JSON or text, cut to a size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from common import codec
from worker.tools.errors import ToolFailed


@dataclass(frozen=True)
class Output:
    """A tool's output: a JSON value, or text where it was too long."""

    value: Any
    truncated: bool = False

    @property
    def text(self) -> str:
        """As a model is told it."""
        return self.value if isinstance(self.value, str) else codec.dumps(self.value).decode()


def limited(value: Any, most_bytes: int) -> Output:
    """`value` with at most `most_bytes` of JSON; what is cut off is said at the end of the rest."""
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()
    try:
        whole = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed(f"it returned what JSON cannot hold: {error}") from None
    if len(whole) <= most_bytes:
        # What is kept is what was measured: no object of the tool's own that only becomes JSON.
        return Output(value if isinstance(value, str) else codec.loads(whole))
    text = value if isinstance(value, str) else whole.decode()
    return Output(cut(text, most_bytes), truncated=True)


def cut(text: str, most_bytes: int) -> str:
    """As much of `text` as fits into `most_bytes` of JSON together with a note that it was cut."""
    note = f"\n[cut off: the whole has {len(text.encode(errors='replace'))} bytes]"
    room = max(most_bytes - len(codec.dumps(note)), 0)
    head = text.encode(errors="replace")[:room].decode(errors="ignore")
    while head and (excess := len(codec.dumps(head)) - 2 - room) > 0:
        # A character takes up to six bytes of JSON.
        head = head[: len(head) - max(1, excess // 6)]
    return head + note
