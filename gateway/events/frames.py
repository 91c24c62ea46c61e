"""How an event looks on the wire: encoded once, the same bytes for every client."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from common import codec
from common.codec import Event
from common.contracts.jobs import TERMINAL, EventField, EventType, FrameType, JobKeys, Step
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.statuses import FINAL_EVENTS, WORKFLOW_JOB_ID_PATTERN

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
    subject_id: str = ""


def entry_frame(entry: list[Any]) -> Frame:
    """An entry of a job's stream, as Redis answers it."""
    entry_id, flat = entry
    return event_frame(Event.from_entry(entry_id, dict(zip(flat[::2], flat[1::2]))))


def event_frame(event: Event) -> Frame:
    body = event.body()
    data = codec.dumps(body)
    kind = "".join(event.type.splitlines())  # a foreign type must not break out of its line
    sse = b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), kind.encode(), data)
    ndjson = codec.dumps({"id": event.id, **body}) + b"\n"
    position = codec.parse_stream_id(event.id) or (0, 0)
    return Frame(event.id, sse, ndjson, event.type, position, event.ts)


def notice_frame(kind: str, data: dict[str, object], *, retry_ms: int | None = None) -> Frame:
    """Something the gateway itself has to say. It has no id: resuming must not start from it."""
    body = codec.dumps(
        {
            EventField.TYPE: kind,
            EventField.TS: int(time.time() * 1000),
            EventField.STEP: Step.GATEWAY_STREAM,
            EventField.DATA: data,
        }
    )
    retry = b"retry: %d\n" % retry_ms if retry_ms is not None else b""
    sse = b"%bevent: %b\ndata: %b\n\n" % (retry, kind.encode(), body)
    return Frame("", sse, body + b"\n")


def shutdown_frame() -> Frame:
    """The last word of a stream that its client should take up again."""
    detail = "this stream is closing; reconnect with Last-Event-ID to go on"
    return notice_frame(FrameType.SHUTDOWN, {"detail": detail}, retry_ms=RETRY_AFTER_SHUTDOWN_MS)


def heartbeat_frame() -> Frame:
    """Proof of life in silence: a comment for SSE, a line of its own for NDJSON."""
    beat = notice_frame(FrameType.HEARTBEAT, {})
    return Frame("", b": hb %d\n\n" % int(time.time() * 1000), beat.ndjson)


class Source(NamedTuple):
    """One job's events."""

    #: What hints call it.
    name: str
    #: Key of the stream, and of the record without which there is no such job; '' for a stream
    #: that outlives whatever it tells of.
    events: str
    record: str
    #: Types of events after which a live stream is over.
    ending: frozenset[str]
    #: Type of the first event; '' where ids are numbers without holes, from 1 on. Such a stream
    #: may also go on after its end: when the job is taken up again.
    first: str = ""
    #: How an entry of the stream is told.
    frame: Callable[[list[Any]], Frame] = entry_frame
    #: Where a stream tells of more than what is watched: which frames are of that.
    accepts: Callable[[Frame], bool] | None = None
    #: Whether ids are times, though there is no first event.
    timed: bool = False
    #: Of the partition that has it; '' for the home.
    tag: str = ""

    @property
    def numbered(self) -> bool:
        """Whether ids are numbers instead of times."""
        return not self.first and not self.timed

    @property
    def may_continue(self) -> bool:
        """Whether more may follow an end."""
        return not self.first


def job_source(keys: JobKeys, job_id: str) -> Source:
    """The events of a core job."""
    # A foreign hand may have named its job as workflow jobs are named: that one has no hints.
    name = job_id if not WORKFLOW_JOB_ID_PATTERN.match(job_id) else keys.job(job_id)
    record, first = keys.job(job_id), EventType.QUEUED
    return Source(name, keys.events(job_id), record, TERMINAL, first, tag=keys.tag)


def workflow_source(
    keys: WorkflowKeys, job_id: str, ending: frozenset[str] = FINAL_EVENTS
) -> Source:
    """The events of a workflow job."""
    return Source(job_id, keys.events(job_id), keys.job(job_id), ending)
