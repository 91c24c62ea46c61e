"""Parser of server-sent events."""

from __future__ import annotations

from typing import NamedTuple

from sluice.errors import BadAnswer

#: Maximum size of one event; a gateway never sends a longer one.
MAX_EVENT_BYTES = 32 * 1024 * 1024


class Message(NamedTuple):
    """One server-sent event."""

    id: str
    event: str
    data: str


class SseParser:
    """Splits a byte stream into messages. Chunk boundaries may be anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._size = 0
        self._id, self._event, self._data = "", "", []  # type: tuple[str, str, list[str]]
        #: Seconds to wait before reconnecting, from the `retry` field.
        self.retry_s: float | None = None

    def feed(self, chunk: bytes) -> list[Message]:
        """Add a chunk; returns the messages it completes."""
        self._size += len(chunk)
        if self._size > MAX_EVENT_BYTES:
            raise BadAnswer(f"an event of the stream is longer than {MAX_EVENT_BYTES >> 20} MB")
        self._rest += chunk
        if b"\n" not in chunk:
            return []
        *lines, self._rest = self._rest.split(b"\n")
        messages = []
        for line in lines:
            message = self._parse_line(line.rstrip(b"\r").decode("utf-8", "replace"))
            if message is not None:
                messages.append(message)
        if messages:
            self._size = len(self._rest)
        return messages

    def _parse_line(self, line: str) -> Message | None:
        if line:
            name, _, value = line.partition(":")
            self._set_field(name, value.removeprefix(" "))
            return None
        message = Message(self._id, self._event or "message", "\n".join(self._data))
        is_complete = bool(self._event or self._data)
        self._id, self._event, self._data = "", "", []
        if not is_complete:
            self._size = len(self._rest)  # the end of a comment (heartbeat)
        return message if is_complete else None

    def _set_field(self, name: str, value: str) -> None:
        if name == "id":
            self._id = value
        elif name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_s = min(int(value[:9]) / 1000, 60.0)
