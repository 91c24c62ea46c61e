"""Image records and result entries, parsed from untrusted data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.codec import JOB_ID_PATTERN
from sluice.common.contracts import values_of
from sluice.common.contracts.images import (
    Detect,
    ImageFailureField,
    ImageRecordField,
    ImageResultField,
    ImageResultStatus,
    ImageStatus,
)
from sluice.common.features.images.storage.base import validate_storage_key

_STATUSES = {status.value: status for status in ImageStatus}


@dataclass(frozen=True)
class ImageResult:
    """A success, as in the result stream."""

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
class ImageFailure:
    """A failure, as in the result stream."""

    error_code: str
    error_message: str
    failed_at: str


@dataclass(frozen=True)
class ImageRecord:
    """`image:record:{image_id}`; missing texts are empty and missing numbers 0."""

    image_id: str
    status: ImageStatus
    created_at: str
    updated_at: str
    filename: str = ""
    declared_type: str = ""
    max_bytes: int = 0
    #: The client's JSON object.
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
    #: `result` if `processed`, `failure` if `failed`.
    result: ImageResult | None = None
    failure: ImageFailure | None = None

    @property
    def ended(self) -> bool:
        """True if processing has ended, unless the image is reopened."""
        return self.status in (ImageStatus.PROCESSED, ImageStatus.FAILED)

    def detail(self) -> dict[str, Any]:
        return _object(self.details)

    @classmethod
    def from_hash(cls, image_id: str, stored: Mapping[bytes, bytes]) -> ImageRecord | None:
        """From HGETALL; None if it is not a record."""

        def raw(field: str) -> bytes:
            return stored.get(field.encode(), b"")

        def text(field: str) -> str:
            return codec.decode_text(raw(field))

        def number(field: str) -> int:
            return max(codec.parse_int(raw(field) or b"0"), 0)

        status = _STATUSES.get(text(ImageRecordField.STATUS))
        if status is None:
            return None
        result = failure = None
        if status is ImageStatus.PROCESSED:
            result = ImageResult(
                storage_key=text(ImageResultField.STORAGE_KEY),
                sha256=text(ImageResultField.SHA256),
                etag=text(ImageResultField.ETAG),
                file_size=number(ImageResultField.FILE_SIZE),
                content_type=text(ImageResultField.CONTENT_TYPE),
                original_width=number(ImageResultField.ORIGINAL_WIDTH),
                original_height=number(ImageResultField.ORIGINAL_HEIGHT),
                processed_width=number(ImageResultField.PROCESSED_WIDTH),
                processed_height=number(ImageResultField.PROCESSED_HEIGHT),
                processed_at=text(ImageResultField.PROCESSED_AT),
            )
        elif status is ImageStatus.FAILED:
            failure = ImageFailure(
                error_code=text(ImageFailureField.ERROR_CODE),
                error_message=text(ImageFailureField.ERROR_MESSAGE),
                failed_at=text(ImageFailureField.FAILED_AT),
            )
        return cls(
            image_id=image_id,
            status=status,
            created_at=text(ImageRecordField.CREATED_AT),
            updated_at=text(ImageRecordField.UPDATED_AT),
            filename=text(ImageRecordField.FILENAME),
            declared_type=text(ImageRecordField.DECLARED_TYPE),
            max_bytes=number(ImageRecordField.MAX_BYTES),
            metadata=_json(raw(ImageRecordField.METADATA)),
            detect=Detect.NONE
            if text(ImageRecordField.DETECT) == Detect.NONE.value
            else Detect.AUTO,
            tenant=text(ImageRecordField.TENANT),
            tail=text(ImageRecordField.TAIL),
            ttl_s=number(ImageRecordField.TTL_S),
            upload_id=text(ImageRecordField.UPLOAD_ID),
            upload_deadline_ms=number(ImageRecordField.UPLOAD_DEADLINE_MS),
            job_id=text(ImageRecordField.JOB_ID),
            uploaded_type=text(ImageRecordField.UPLOADED_TYPE),
            source_bytes=number(ImageRecordField.SOURCE_BYTES),
            source_sha256=text(ImageRecordField.SOURCE_SHA256),
            details=_json(raw(ImageRecordField.DETAILS)),
            result_entry_id=text(ImageRecordField.RESULT_ENTRY_ID),
            result=result,
            failure=failure,
        )


class ImageRecordPage(NamedTuple):
    """A page of records, newest first."""

    records: Sequence[ImageRecord]
    #: The cursor of the next page; empty at the end.
    next: str
    #: Number of entries in the index; a few of them may have expired.
    total: int


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = codec.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _json(raw: bytes) -> bytes:
    """The value if it is a JSON object, else an empty one."""
    return raw if _object(raw) else b"{}"


#: Longest accepted value, in characters; Sluice writes no longer ones.
MOST_CHARS: Final = 10_000
_FIELDS: Final = {
    ImageResultStatus.PROCESSED.value: set(values_of(ImageResultField)),
    ImageResultStatus.FAILED.value: set(values_of(ImageFailureField)),
}
_NUMBERS: Final = (
    ImageResultField.FILE_SIZE,
    ImageResultField.ORIGINAL_WIDTH,
    ImageResultField.ORIGINAL_HEIGHT,
    ImageResultField.PROCESSED_WIDTH,
    ImageResultField.PROCESSED_HEIGHT,
)
_NUMBER: Final = re.compile(r"\A[0-9]{1,15}\Z")
_SHA256: Final = re.compile(r"\A[0-9a-f]{64}\Z")


def find_entry_error(fields: Mapping[str, str]) -> str:
    """Why an entry is not a valid result; empty if it is valid."""
    expected = _FIELDS.get(fields.get(ImageResultField.STATUS, ""))
    if expected is None:
        return "invalid status"
    if fields.keys() != expected:
        return "its fields are not those of a result"
    if not JOB_ID_PATTERN.match(fields[ImageResultField.IMAGE_ID]):
        return "invalid image id"
    if any(len(value) > MOST_CHARS for value in fields.values()):
        return "a value is too long"
    if ImageResultField.SHA256 not in fields:
        return ""
    for field in _NUMBERS:
        if not _NUMBER.match(fields[field]):
            return f"{field} is not a number"
    if not _SHA256.match(fields[ImageResultField.SHA256]):
        return f"{ImageResultField.SHA256} is not 64 hex digits"
    try:
        validate_storage_key(fields[ImageResultField.STORAGE_KEY])
    except ValueError:
        return f"{ImageResultField.STORAGE_KEY} is not a valid object name"
    return ""
