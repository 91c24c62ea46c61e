"""How an event looks on the wire: encoded once, the same bytes for every client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from common import codec
from common.codec import Event
from common.contracts.jobs import EventField, FrameType, Step

#: Milliseconds after which a browser comes back after a lost connection, and after a restart.
RETRY_MS = 1000
RETRY_AFTER_SHUTDOWN_MS = 500


@dataclass(frozen=True, slots=True)
class Frame:
    """One event for clients, in both forms; `id` is empty for what Redis does not hold."""

    id: str
    sse: bytes
    ndjson: bytes
    type: str = ""
    position: tuple[int, int] = (0, 0)
    #: When it happened, by the clock of whoever wrote it.
    ts: int = 0
    #: Whose event it is, where a stream tells of several.
    about: str = ""


def entry_frame(entry: list[Any]) -> Frame:
    """An entry of a job's stream, as Redis answers it."""
    entry_id, flat = entry
    return event_frame(Event.from_entry(entry_id, dict(zip(flat[::2], flat[1::2]))))


def event_frame(event: Event) -> Frame:
    """A stored event."""
    body = event.body()
    data = codec.dumps(body)
    kind = "".join(event.type.splitlines())  # a foreign type must not break out of its line
    sse = b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), kind.encode(), data)
    ndjson = codec.dumps({"id": event.id, **body}) + b"\n"
    position = codec.stream_id(event.id) or (0, 0)
    return Frame(event.id, sse, ndjson, event.type, position, event.ts)


def notice(kind: FrameType, data: dict[str, object], *, retry_ms: int | None = None) -> Frame:
    """Something the gateway itself has to say. It has no id: resuming must not start from it."""
    body = codec.dumps(
        {
            EventField.TYPE.value: kind.value,
            EventField.TS.value: int(time.time() * 1000),
            EventField.STEP.value: Step.GATEWAY_STREAM.value,
            EventField.DATA.value: data,
        }
    )
    retry = b"retry: %d\n" % retry_ms if retry_ms is not None else b""
    sse = b"%bevent: %b\ndata: %b\n\n" % (retry, kind.value.encode(), body)
    return Frame("", sse, body + b"\n")


def farewell() -> Frame:
    """The last word of a stream that its client should take up again."""
    detail = "this stream is closing; reconnect with Last-Event-ID to go on"
    return notice(FrameType.SHUTDOWN, {"detail": detail}, retry_ms=RETRY_AFTER_SHUTDOWN_MS)


def heartbeat() -> Frame:
    """Proof of life in silence: a comment for SSE, a line of its own for NDJSON."""
    beat = notice(FrameType.HEARTBEAT, {})
    return Frame("", b": hb %d\n\n" % int(time.time() * 1000), beat.ndjson)
