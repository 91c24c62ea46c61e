"""Server-sent events as they come off a wire, cut anywhere."""

from __future__ import annotations

from worker.model.errors import ModelAnswerInvalid

#: An event holds a token or two. One this long is a mistake, or an attack.
MOST_EVENT_BYTES = 1024 * 1024

_DATA = b"data"
#: llama-server has sent errors as a field of their own.
_ERROR = b"error"


class EventParser:
    """Takes bytes, gives the data of whole events; comments only keep a line open."""

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """What has become whole; raises ModelAnswerInvalid for an event that is too long."""
        if self._after_cr and data:  # a line break that was cut in two is one
            data = data[1:] if data[:1] == b"\n" else data
            self._after_cr = False
        *lines, self._rest = _lines(self._rest + data)
        if lines and data.endswith(b"\r"):
            self._after_cr = True
        events = []
        for line in lines:
            event = self._line(line)
            if event is not None:
                events.append(event)
        self._check(len(self._rest))
        return events

    def end(self) -> list[bytes]:
        """The wire has ended: what was left without an empty line after it."""
        rest, self._rest = self._rest, b""
        events = [self._line(rest)] if rest else []
        events.append(self._line(b""))
        return [event for event in events if event is not None]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name in (_DATA, _ERROR):
            value = value[1:] if value[:1] == b" " else value
            if name == _ERROR:
                value = b'{"error":' + value + b"}"
            self._data.append(value)
            self._size += len(value)
            self._check()
        return None

    def _check(self, unfinished: int = 0) -> None:
        if self._size + unfinished > self._most_bytes:
            raise ModelAnswerInvalid(
                f"the model server sent an event of more than {self._most_bytes} bytes"
            )


def _lines(data: bytes) -> list[bytes]:
    """The lines of `data`; the last one is what has no end yet."""
    lines = data.splitlines()
    if not data or data[-1:] in (b"\n", b"\r"):
        lines.append(b"")
    return lines
