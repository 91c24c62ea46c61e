"""Wire format of events. Each event is encoded once, and all clients get the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice.common import codec
from sluice.common.codec import Event
from sluice.common.contracts.jobs import TERMINAL, EventField, EventType, FrameType, JobKeys, Step
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import FINAL_EVENTS, WORKFLOW_JOB_ID_PATTERN

#: Milliseconds after which a browser reconnects: after a lost connection, and after a shutdown.
RETRY_MS = 1000
RETRY_AFTER_SHUTDOWN_MS = 500


@dataclass(frozen=True, slots=True)
class Frame:
    """One event, encoded as SSE and as NDJSON. `id` is empty for events not stored in Redis."""

    id: str
    sse: bytes
    ndjson: bytes
    type: str = ""
    position: tuple[int, int] = (0, 0)
    #: Time of the event in Unix milliseconds, by the clock of the process that wrote it.
    ts: int = 0
    #: Id of the object that the event belongs to, in a stream that covers several.
    subject_id: str = ""


#: Line breaks that JSON does not escape, in UTF-8, and their escapes.
_LINE_SEPARATOR, _PARAGRAPH_SEPARATOR, _NEXT_LINE = b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85"


def escape_line_breaks(data: bytes) -> bytes:
    """Valid JSON with U+2028, U+2029 and U+0085 escaped.

    Many clients end a line at them, as Python's `str.splitlines` does. They occur only in strings,
    so the value does not change.
    """
    # `isascii` and the search for one byte are much faster than the search for several.
    if data.isascii():
        return data
    if 0xA8 in data and _LINE_SEPARATOR in data:
        data = data.replace(_LINE_SEPARATOR, rb"\u2028")
    if 0xA9 in data and _PARAGRAPH_SEPARATOR in data:
        data = data.replace(_PARAGRAPH_SEPARATOR, rb"\u2029")
    if 0x85 in data and _NEXT_LINE in data:
        data = data.replace(_NEXT_LINE, rb"\u0085")
    return data


def with_id(event_id: bytes, data: bytes) -> bytes:
    """The NDJSON line of an event: the members of `data`, a JSON object, after its id."""
    return b'{"id":"%b",%b\n' % (event_id, data[1:])


def entry_frame(entry: list[Any]) -> Frame:
    """Encode an entry of a job's stream, as returned by Redis."""
    entry_id, flat = entry
    return event_frame(Event.from_entry(entry_id, dict(zip(flat[::2], flat[1::2]))))


def event_frame(event: Event) -> Frame:
    data = escape_line_breaks(codec.dumps(event.body()))
    kind = "".join(event.type.splitlines())  # a line break in a type must not add an SSE field
    name = event.id.encode()
    sse = b"id: %b\nevent: %b\ndata: %b\n\n" % (name, kind.encode(), data)
    ndjson = with_id(name, data)
    position = codec.parse_stream_id(event.id) or (0, 0)
    return Frame(event.id, sse, ndjson, event.type, position, event.ts)


def notice_frame(kind: str, data: dict[str, object], *, retry_ms: int | None = None) -> Frame:
    """An event of the gateway itself. It has no id, so a client does not resume from it."""
    notice = {
        EventField.TYPE: kind,
        EventField.TS: int(time.time() * 1000),
        EventField.STEP: Step.GATEWAY_STREAM,
        EventField.DATA: data,
    }
    body = escape_line_breaks(codec.dumps(notice))
    retry = b"retry: %d\n" % retry_ms if retry_ms is not None else b""
    sse = b"%bevent: %b\ndata: %b\n\n" % (retry, kind.encode(), body)
    return Frame("", sse, body + b"\n")


def shutdown_frame() -> Frame:
    """Last frame of a stream that the client should resume with a new request."""
    detail = "this stream is closing; reconnect with Last-Event-ID to continue"
    return notice_frame(FrameType.SHUTDOWN, {"detail": detail}, retry_ms=RETRY_AFTER_SHUTDOWN_MS)


def heartbeat_frame() -> Frame:
    """Keeps an idle stream open: a comment in SSE, a line in NDJSON."""
    beat = notice_frame(FrameType.HEARTBEAT, {})
    return Frame("", b": hb %d\n\n" % int(time.time() * 1000), beat.ndjson)


class Source(NamedTuple):
    """Describes the event stream of one job, workflow, image or queue."""

    #: Name of the stream in hints.
    name: str
    #: Redis key of the stream.
    events: str
    #: Redis key of the job's record; the stream ends when it is gone. '' if the stream outlives
    #: the jobs whose events it holds.
    record: str
    #: Event types that end a live stream.
    ending: frozenset[str]
    #: Type of the first event. '' if ids are consecutive numbers from 1; such a stream may
    #: continue after a final event, when the job is resumed.
    first: str = ""
    #: Encodes an entry of the stream.
    frame: Callable[[list[Any]], Frame] = entry_frame
    #: Selects the frames to deliver, for a stream that is shared by several jobs.
    accepts: Callable[[Frame], bool] | None = None
    #: True if ids are timestamps although there is no first event.
    timed: bool = False
    #: Tag of the partition that holds the stream; '' for the home partition.
    tag: str = ""

    @property
    def numbered(self) -> bool:
        """True if ids are consecutive numbers instead of timestamps."""
        return not self.first and not self.timed

    @property
    def may_continue(self) -> bool:
        """True if events may follow a final event."""
        return not self.first


def job_source(keys: JobKeys, job_id: str) -> Source:
    """The event stream of a core job."""
    # A third-party producer may have used an id in the format of workflow jobs. No hint names such
    # a job, so the key serves as the name.
    name = job_id if not WORKFLOW_JOB_ID_PATTERN.match(job_id) else keys.job(job_id)
    record, first = keys.job(job_id), EventType.QUEUED
    return Source(name, keys.events(job_id), record, TERMINAL, first, tag=keys.tag)


def workflow_source(
    keys: WorkflowKeys, job_id: str, ending: frozenset[str] = FINAL_EVENTS
) -> Source:
    """The event stream of a workflow job."""
    return Source(job_id, keys.events(job_id), keys.job(job_id), ending)
