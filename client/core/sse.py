"""Server-sent events out of bytes, in whatever pieces these come."""

from __future__ import annotations

from typing import NamedTuple

from client.errors import BadAnswer

#: More than any event of a gateway has.
MOST_BYTES = 32 * 1024 * 1024


class Message(NamedTuple):
    """One event of a stream."""

    id: str
    event: str
    data: str


class Parser:
    """Takes pieces, gives whole messages; what a broken connection leaves unfinished is dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._size = 0
        self._id, self._event, self._data = "", "", []  # type: tuple[str, str, list[str]]
        #: How long the gateway wants us to wait before we come back.
        self.retry_s: float | None = None

    def feed(self, piece: bytes) -> list[Message]:
        """The messages that this piece completes."""
        self._size += len(piece)
        if self._size > MOST_BYTES:
            raise BadAnswer("the gateway's stream does not come to the end of an event")
        self._rest += piece
        if b"\n" not in piece:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        found = []
        for line in lines:
            message = self._line(line.rstrip(b"\r").decode("utf-8", "replace"))
            if message is not None:
                found.append(message)
        if found:
            self._size = len(self._rest)
        return found

    def _line(self, line: str) -> Message | None:
        if line:
            name, _, value = line.partition(":")
            self._field(name, value.removeprefix(" "))
            return None
        message = Message(self._id, self._event or "message", "\n".join(self._data))
        told = bool(self._event or self._data)
        self._id, self._event, self._data = "", "", []
        if not told:
            self._size = len(self._rest)  # a comment's end: a heartbeat
        return message if told else None

    def _field(self, name: str, value: str) -> None:
        if name == "id":
            self._id = value
        elif name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_s = min(int(value[:9]) / 1000, 60.0)
