"""An image as answers show it: the record, and how far it is just now."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from common import codec
from common.contracts.images import PROGRESS, DetailField, ImageStatus, Stage
from common.images.records import ImageRecord
from common.images.types import Progress
from gateway.images.models import DetectionView, ImageView
from gateway.images.paths import content_place, upload_place

#: What a record's status alone says of the stage.
_STAGES: Final = {
    ImageStatus.QUEUED: Stage.QUEUED,
    ImageStatus.PROCESSING: Stage.QUEUED,
    ImageStatus.PROCESSED: Stage.DONE,
    ImageStatus.FAILED: Stage.FAILED,
}
#: Members of `details` that are shown, with what they must be; others are a newer worker's.
_DETAILS: Final[dict[DetailField, TypeAdapter[Any]]] = {
    DetailField.REASON: TypeAdapter(str),
    DetailField.SOURCE_FORMAT: TypeAdapter(str),
    DetailField.SOURCE_FRAMES: TypeAdapter(int),
    DetailField.HAS_ALPHA: TypeAdapter(bool),
    DetailField.DETECTOR: TypeAdapter(str),
    DetailField.DETECTIONS: TypeAdapter(list[DetectionView]),
    DetailField.BLUR: TypeAdapter(str),
    DetailField.THUMBHASH: TypeAdapter(str),
    DetailField.DOMINANT_COLOR: TypeAdapter(str),
    DetailField.TIMINGS_MS: TypeAdapter(dict[str, float]),
}


def image_view(record: ImageRecord, progress: Progress | None) -> ImageView:
    """Everything; how it ended counts more than a status that does not know yet."""
    stage = _STAGES[record.status]
    percent, updated_at = PROGRESS[stage], record.updated_at
    if progress is not None and not record.ended:
        stage, percent = progress.stage, progress.progress
        updated_at = max(progress.updated_at, updated_at)
    found = ImageView(
        image_id=record.image_id,
        status=record.status,
        stage=stage,
        progress=min(max(codec.integer(percent.encode()), -1), 100),
        created_at=record.created_at,
        updated_at=updated_at,
        filename=record.filename or None,
        declared_type=record.declared_type or None,
        max_bytes=record.max_bytes or None,
        metadata=codec.payload_object(record.metadata),
        detect=record.detect,
        job_id=record.job_id or None,
        uploaded_type=record.uploaded_type or None,
        source_bytes=record.source_bytes or None,
        source_sha256=record.source_sha256 or None,
    )
    if record.status is ImageStatus.QUEUED:
        found.upload_url = upload_place(record.image_id)
    _add_end(found, record)
    return found


def _add_end(found: ImageView, record: ImageRecord) -> None:
    result, failure = record.result, record.failure
    if result is not None:
        for name in type(result).__dataclass_fields__:
            setattr(found, name, getattr(result, name))
        found.content_url = content_place(record.image_id)
    elif failure is not None:
        found.error, found.error_code = failure.error_message, failure.error_code
        found.failed_at = failure.failed_at
    detail = record.detail()
    for field, kind in _DETAILS.items():
        value = detail.get(field.value)
        if value is not None:
            try:
                setattr(found, field.value, kind.validate_python(value))
            except ValidationError:
                continue  # a foreign hand's


def body_of(view: ImageView) -> bytes:
    """As JSON."""
    return codec.dumps(view.model_dump(mode="json", exclude_none=True))
