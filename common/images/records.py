"""An image's record as it is read: typed, whatever a foreign hand has written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from common import codec
from common.contracts.images import (
    Detect,
    FailureField,
    ImageStatus,
    RecordField,
    ResultField,
)

_STATUSES = {status.value: status for status in ImageStatus}


@dataclass(frozen=True)
class Result:
    """A success, as the result stream told it."""

    storage_key: str
    sha256: str
    etag: str
    file_size: int
    content_type: str
    original_width: int
    original_height: int
    processed_width: int
    processed_height: int
    processed_at: str


@dataclass(frozen=True)
class Failure:
    """A failure, likewise."""

    error_code: str
    error_message: str
    failed_at: str


@dataclass(frozen=True)
class ImageRecord:
    """`image:record:{image_id}`; texts are empty and numbers 0 where there is nothing."""

    image_id: str
    status: ImageStatus
    created_at: str
    updated_at: str
    filename: str = ""
    declared_type: str = ""
    max_bytes: int = 0
    #: JSON object, as the client gave it.
    metadata: bytes = b"{}"
    detect: Detect = Detect.AUTO
    tenant: str = ""
    tail: str = ""
    ttl_s: int = 0
    upload_id: str = ""
    upload_deadline_ms: int = 0
    job_id: str = ""
    uploaded_type: str = ""
    source_bytes: int = 0
    source_sha256: str = ""
    #: JSON object of `DetailField`.
    details: bytes = b"{}"
    result_entry_id: str = ""
    #: The one with `processed`, the other with `failed`.
    result: Result | None = None
    failure: Failure | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen, unless somebody opens it again."""
        return self.status in (ImageStatus.PROCESSED, ImageStatus.FAILED)

    def detail(self) -> dict[str, Any]:
        """`details` as an object."""
        return _object(self.details)

    @classmethod
    def from_hash(cls, image_id: str, stored: Mapping[bytes, bytes]) -> ImageRecord | None:
        """From HGETALL; None where it is no record of ours."""

        def raw(field: RecordField | ResultField | FailureField) -> bytes:
            return stored.get(field.value.encode(), b"")

        def text(field: RecordField | ResultField | FailureField) -> str:
            return codec.text(raw(field))

        def number(field: RecordField | ResultField | FailureField) -> int:
            return max(codec.integer(raw(field) or b"0"), 0)

        status = _STATUSES.get(text(RecordField.STATUS))
        if status is None:
            return None
        result = failure = None
        if status is ImageStatus.PROCESSED:
            result = Result(
                storage_key=text(ResultField.STORAGE_KEY),
                sha256=text(ResultField.SHA256),
                etag=text(ResultField.ETAG),
                file_size=number(ResultField.FILE_SIZE),
                content_type=text(ResultField.CONTENT_TYPE),
                original_width=number(ResultField.ORIGINAL_WIDTH),
                original_height=number(ResultField.ORIGINAL_HEIGHT),
                processed_width=number(ResultField.PROCESSED_WIDTH),
                processed_height=number(ResultField.PROCESSED_HEIGHT),
                processed_at=text(ResultField.PROCESSED_AT),
            )
        elif status is ImageStatus.FAILED:
            failure = Failure(
                error_code=text(FailureField.ERROR_CODE),
                error_message=text(FailureField.ERROR_MESSAGE),
                failed_at=text(FailureField.FAILED_AT),
            )
        return cls(
            image_id=image_id,
            status=status,
            created_at=text(RecordField.CREATED_AT),
            updated_at=text(RecordField.UPDATED_AT),
            filename=text(RecordField.FILENAME),
            declared_type=text(RecordField.DECLARED_TYPE),
            max_bytes=number(RecordField.MAX_BYTES),
            metadata=_json(raw(RecordField.METADATA)),
            detect=Detect.NONE if text(RecordField.DETECT) == Detect.NONE.value else Detect.AUTO,
            tenant=text(RecordField.TENANT),
            tail=text(RecordField.TAIL),
            ttl_s=number(RecordField.TTL_S),
            upload_id=text(RecordField.UPLOAD_ID),
            upload_deadline_ms=number(RecordField.UPLOAD_DEADLINE_MS),
            job_id=text(RecordField.JOB_ID),
            uploaded_type=text(RecordField.UPLOADED_TYPE),
            source_bytes=number(RecordField.SOURCE_BYTES),
            source_sha256=text(RecordField.SOURCE_SHA256),
            details=_json(raw(RecordField.DETAILS)),
            result_entry_id=text(RecordField.RESULT_ENTRY_ID),
            result=result,
            failure=failure,
        )


class Page(NamedTuple):
    """Some records, newest first."""

    records: Sequence[ImageRecord]
    #: Where the next page goes on; empty where there is none.
    next: str
    #: How many the index has; a few of them may have run out.
    total: int


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = codec.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _json(raw: bytes) -> bytes:
    """What is no JSON object counts as an empty one."""
    return raw if _object(raw) else b"{}"
