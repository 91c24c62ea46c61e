"""The events of an image: `processing`, `ready` and `failed`.

They are the current state, not a log: a client that connects late or reads slowly gets the latest
state. The id of an event identifies that state, so that a client that reconnects after the end
gets 204.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, Field

from sluice.common import codec
from sluice.common.contracts.images import (
    CONTENT_TYPE,
    STAGE_PROGRESS,
    ImageArgument,
    ImageStatus,
    Stage,
)
from sluice.common.contracts.jobs import EventField, FrameType
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import ImageProgress
from sluice.gateway.events.frames import Frame, escape_line_breaks, notice_frame
from sluice.gateway.features.images.models import EXAMPLE_ID
from sluice.gateway.http.paths import image_content_url


class ImageEventData(BaseModel):
    """Data of every event."""

    image_id: str = Field(examples=[EXAMPLE_ID])
    stage: Stage
    progress: int = Field(description="Percent; -1 if it has failed.", ge=-1, le=100)
    updated_at: str


class ReadyData(ImageEventData):
    """Data of `ready`: the stored image, and its URL."""

    original_width: int | None = None
    original_height: int | None = None
    processed_width: int | None = None
    processed_height: int | None = None
    file_size: int | None = None
    content_type: str | None = Field(None, examples=[CONTENT_TYPE])
    sha256: str | None = None
    etag: str | None = None
    content_url: str


class FailedData(ImageEventData):
    """Data of `failed`: the error."""

    error: str
    error_code: str


TERMINAL_STAGES: Final = (Stage.DONE, Stage.FAILED)


class ImageEvent(str, Enum):
    """Types of events of an image."""

    PROCESSING = "processing"
    #: The image is stored. Terminal.
    READY = "ready"
    #: Terminal, unless the image is uploaded again.
    FAILED = "failed"


_BY_STAGE: Final = {
    stage: ImageEvent.PROCESSING for stage in Stage if stage not in TERMINAL_STAGES
} | {
    Stage.DONE: ImageEvent.READY,
    Stage.FAILED: ImageEvent.FAILED,
}
_TYPE: Final = EventField.TYPE.encode()
_DATA: Final = EventField.DATA.encode()


@dataclass(frozen=True)
class ImageState:
    """The state of one image, encoded once for all clients."""

    image_id: str
    #: Identifies the state; equal for equal states.
    version: str
    type: str
    data: bytes
    ended: bool
    #: Stage and progress; a change of these is an event.
    state: str = ""
    #: Time of the state, Unix milliseconds; 0 if unknown.
    ts: int = 0

    @property
    def is_gone(self) -> bool:
        """True if the image does not exist."""
        return self.type == FrameType.GONE

    def is_update_to(self, known: ImageState | None) -> bool:
        """True if a client that knows `known` gets an event."""
        if known is None or self.ended:
            return known is None or known.version != self.version
        return known.ended or known.state != self.state

    def frame(self, event_id: str) -> Frame:
        """The event of a stream, with this id."""
        name, kind = event_id.encode(), self.type.encode()
        sse = b"id: %b\nevent: %b\ndata: %b\n\n" % (name, kind, self.data)
        ndjson = b'{"id":"%b","%b":"%b","%b":%b}\n' % (name, _TYPE, kind, _DATA, self.data)
        return Frame(event_id, sse, ndjson, self.type, ts=self.ts)


@dataclass(frozen=True)
class _GoneState(ImageState):
    def frame(self, event_id: str) -> Frame:
        """A notice without an id, since it is not an event of the image."""
        facts: dict[str, Any] = {
            ImageArgument.IMAGE_ID: self.image_id,
            "detail": "there is no such image",
        }
        return notice_frame(FrameType.GONE, facts)


def gone_state(image_id: str) -> ImageState:
    """The state of an image that does not exist, or has expired."""
    return _GoneState(image_id, FrameType.GONE, FrameType.GONE, b"", True)


def image_state(record: ImageRecord, progress: ImageProgress | None) -> ImageState | None:
    """The state of an image; None while the status says that it has ended and the record does not
    have the result yet. A third-party pipeline may write only the status."""
    if record.status is ImageStatus.PROCESSED:
        return _ready(record)
    if record.status is ImageStatus.FAILED:
        return _failed(record)
    if progress is None:  # the status has expired while the image waited
        progress = ImageProgress(Stage.QUEUED, STAGE_PROGRESS[Stage.QUEUED], record.updated_at)
    return (
        None if progress.stage in TERMINAL_STAGES else in_progress_state(record.image_id, progress)
    )


def in_progress_state(image_id: str, progress: ImageProgress) -> ImageState:
    """The state of an image that has not ended, or whose result is not known yet."""
    if progress.stage in TERMINAL_STAGES:
        progress = progress._replace(
            stage=Stage.UPLOADING, progress=STAGE_PROGRESS[Stage.UPLOADING], error=""
        )
    data = ImageEventData(
        image_id=image_id,
        stage=progress.stage,
        progress=min(max(codec.parse_int(progress.progress.encode()), 0), 100),
        updated_at=progress.updated_at,
    )
    ms = _ms(progress.updated_at)
    named = ms or zlib.crc32(progress.updated_at.encode())
    return _make_state(data, f"{named}-{progress.stage.value}", ms)


def _ready(record: ImageRecord) -> ImageState:
    result = record.result
    data = ReadyData(
        image_id=record.image_id,
        stage=Stage.DONE,
        progress=int(STAGE_PROGRESS[Stage.DONE]),
        updated_at=record.updated_at,
        content_url=image_content_url(record.image_id),
    )
    if result is not None:
        for name in ReadyData.model_fields.keys() & type(result).__dataclass_fields__.keys():
            setattr(data, name, getattr(result, name))
    return _make_state(data, record.result_entry_id, _ms(record.updated_at))


def _failed(record: ImageRecord) -> ImageState:
    failure = record.failure
    data = FailedData(
        image_id=record.image_id,
        stage=Stage.FAILED,
        progress=int(STAGE_PROGRESS[Stage.FAILED]),
        updated_at=record.updated_at,
        error=failure.error_message if failure else "",
        error_code=failure.error_code if failure else "",
    )
    return _make_state(data, record.result_entry_id, _ms(record.updated_at))


def _make_state(data: ImageEventData, version: str, ms: int) -> ImageState:
    return ImageState(
        data.image_id,
        version or f"{ms}-{data.stage.value}",
        _BY_STAGE[data.stage].value,
        escape_line_breaks(codec.dumps(data.model_dump(mode="json", exclude_none=True))),
        data.stage in TERMINAL_STAGES,
        f"{data.stage.value} {data.progress}",
        ms,
    )


def _ms(moment: str) -> int:
    """RFC 3339 as Unix milliseconds; 0 for an invalid value."""
    try:
        parsed = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return int(parsed.timestamp() * 1000) if parsed.tzinfo else 0
