"""Events of BullMQ queues: each queue has one stream, which can be filtered by job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.bullmq import EVENTS_STEP, BullEvent, BullEventField, BullKeys
from sluice.common.contracts.jobs import EventField
from sluice.gateway.events.frames import Frame, Source, escape_line_breaks, with_id

#: Terminal events, unless the job is retried by hand.
ENDING: Final = frozenset(
    event for event in (BullEvent.COMPLETED, BullEvent.FAILED, BullEvent.REMOVED)
)
_EVENT, _JOB = BullEventField.EVENT.encode(), BullEventField.JOB_ID.encode()
#: Fields that hold JSON.
_JSON: Final = frozenset(
    field.encode() for field in (BullEventField.DATA, BullEventField.RETURN_VALUE)
)


def frame(entry: list[Any]) -> Frame:
    """The frame of a stream entry; its id contains the time of the event."""
    entry_id, flat = entry
    fields: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2]))
    name = codec.decode_text(entry_id)
    position = codec.parse_stream_id(name) or (0, 0)
    kind = "".join(codec.decode_text(fields.pop(_EVENT, b"")).splitlines())
    body = {
        EventField.TYPE: kind,
        EventField.TS: position[0],
        EventField.STEP: EVENTS_STEP,
        EventField.DATA: {
            codec.decode_text(field): codec.node_fragment(value)
            if field in _JSON
            else codec.decode_text(value)
            for field, value in fields.items()
        },
    }
    data = escape_line_breaks(codec.dumps(body))
    sse = b"id: %b\nevent: %b\ndata: %b\n\n" % (entry_id, kind.encode(), data)
    ndjson = with_id(entry_id, data)
    about = codec.decode_text(fields.get(_JOB, b""))
    return Frame(name, sse, ndjson, kind, position, position[0], about)


def job_source(keys: BullKeys, job_id: str) -> Source:
    def is_its(frame: Frame) -> bool:
        return frame.subject_id == job_id

    return Source(keys.events, keys.events, "", ENDING, frame=frame, accepts=is_its, timed=True)


def queue_source(keys: BullKeys, may_see: Callable[[str], bool] | None) -> Source:
    """The events of a queue. `may_see`: selects jobs; None: all jobs and the queue itself."""
    wanted = None if may_see is None else lambda frame: may_see(frame.subject_id)
    return Source(
        keys.events, keys.events, "", frozenset(), frame=frame, accepts=wanted, timed=True
    )
