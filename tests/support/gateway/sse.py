"""A strict parser of event streams: WHATWG's rules, and stricter where Sluice promises more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_FIELDS = ("id", "event", "data", "retry")


@dataclass(frozen=True)
class Block:
    """The lines between two blank lines."""

    id: str | None = None
    event: str | None = None
    data: str | None = None
    retry: str | None = None
    comment: str | None = None

    def json(self) -> Any:
        assert self.data is not None
        return json.loads(self.data)

    @property
    def position(self) -> tuple[int, int]:
        assert self.id is not None
        ms, _, seq = self.id.partition("-")
        return int(ms), int(seq)


class Parser:
    """Parses bytes as they arrive; `blocks` has the complete blocks."""

    def __init__(self) -> None:
        self._buffer = b""
        self.blocks: list[Block] = []

    def feed(self, data: bytes) -> None:
        self._buffer += data
        assert b"\r" not in self._buffer, "lines must end with LF only"
        while b"\n\n" in self._buffer:
            raw, _, self._buffer = self._buffer.partition(b"\n\n")
            self.blocks.append(parse_block(raw.decode("utf-8")))

    def finish(self) -> None:
        assert self._buffer == b"", f"the stream was cut within a block: {self._buffer!r}"


def parse_block(raw: str) -> Block:
    """One block; an unknown or repeated field is an error."""
    found: dict[str, str] = {}
    for line in raw.split("\n"):
        name, _, value = line.partition(":")
        name = name or "comment"
        assert name in (*_FIELDS, "comment"), f"stray line {line!r}"
        assert name not in found, f"{name} came twice in {raw!r}"
        found[name] = value.removeprefix(" ")
    return Block(**found)
