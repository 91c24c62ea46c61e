"""Request and response models of `/v1/images`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError

from sluice.common import codec
from sluice.common.contracts.images import (
    CONTENT_TYPE,
    STAGE_PROGRESS,
    DetailField,
    Detect,
    ErrorCode,
    ImageStatus,
    Stage,
)
from sluice.common.features.images.records import ImageRecord
from sluice.common.features.images.types import ImageProgress
from sluice.gateway.features.images.upload.sink import UPLOAD_TYPES, normalize_type
from sluice.gateway.http.paths import image_content_url, image_upload_url

#: Bytes of JSON that `metadata` may have.
MOST_METADATA = 16 * 1024
MOST_FILENAME = 255
#: Upper limit of `max_bytes`; IMAGE_UPLOAD_HARD_MAX limits uploads further.
MOST_BYTES = 1 << 30
EXAMPLE_ID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
EXAMPLE_REQUEST: dict[str, Any] = {
    "content_type": "image/jpeg",
    "filename": "holiday.jpg",
    "metadata": {"album": 7},
}
_EXAMPLE_TIME = "2026-02-24T10:00:00Z"


def _upload_type(value: object) -> object:
    found = normalize_type(value) if isinstance(value, str) else value
    if found not in UPLOAD_TYPES:
        raise PydanticCustomError("upload_type", f"Input should be one of {_NAMES}")
    return found


_NAMES = ", ".join(UPLOAD_TYPES)
UploadType = Annotated[
    str, BeforeValidator(_upload_type), Field(json_schema_extra={"enum": list(UPLOAD_TYPES)})
]


class CreateImageRequest(BaseModel):
    """An image to be uploaded."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE_REQUEST]})

    content_type: UploadType | None = Field(None, description="Media type of the upload.")
    filename: Annotated[str, Field(min_length=1, max_length=MOST_FILENAME)] | None = Field(
        None, description="File name, used for downloads."
    )
    max_bytes: Annotated[int, Field(strict=True, ge=1, le=MOST_BYTES)] | None = Field(
        None, description="Maximum size of the upload in bytes, at most that of the gateway."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Any JSON object, stored unchanged; at most 16 KB."
    )
    detect: Detect = Field(Detect.AUTO, description="Whether to detect and blur faces.")

    @field_validator("filename")
    @classmethod
    def _of_letters(cls, name: str | None) -> str | None:
        if name is not None and not name.isprintable():
            raise PydanticCustomError("filename", "Input should have no control characters")
        return name

    @field_validator("metadata")
    @classmethod
    def _short(cls, metadata: dict[str, Any]) -> dict[str, Any]:
        try:
            size = len(codec.dumps(metadata))
        except (TypeError, ValueError):
            raise PydanticCustomError("metadata", "Input should be JSON") from None
        if size > MOST_METADATA:
            raise PydanticCustomError(
                "metadata", f"Input should have {MOST_METADATA} bytes of JSON at most"
            )
        return metadata


class CreateImageResponse(BaseModel):
    """Where to upload the image, and until when."""

    image_id: str = Field(examples=[EXAMPLE_ID])
    status: ImageStatus
    upload_url: str = Field(examples=[f"/v1/images/{EXAMPLE_ID}/upload"])
    upload_token: str | None = Field(
        None, description="For X-Upload-Token; only if upload tokens are enabled."
    )
    expires_at: str = Field(
        description="End of the time for the upload, RFC 3339.", examples=[_EXAMPLE_TIME]
    )


class UploadImageResponse(BaseModel):
    """The upload is complete and will be processed."""

    image_id: str = Field(examples=[EXAMPLE_ID])
    status: ImageStatus
    job_id: str = Field(description="The job that processes it.")


class RetryUploadResponse(BaseModel):
    """The image can be uploaded again."""

    image_id: str = Field(examples=[EXAMPLE_ID])
    status: ImageStatus
    stage: Stage
    upload_url: str


class DetectionView(BaseModel):
    """A region that was detected and blurred, in pixels of the stored image."""

    kind: str = Field(examples=["face"])
    x: int
    y: int
    width: int
    height: int
    score: float


class ImageView(BaseModel):
    """An image; members that are unknown or do not apply are absent."""

    image_id: str = Field(examples=[EXAMPLE_ID])
    status: ImageStatus
    stage: Stage = Field(description="Current stage.")
    progress: int = Field(description="Percent; -1 where it has failed.", ge=-1, le=100)
    created_at: str = Field(examples=[_EXAMPLE_TIME])
    updated_at: str = Field(examples=[_EXAMPLE_TIME])
    filename: str | None = None
    declared_type: str | None = Field(
        None, description="Media type declared when the image was created."
    )
    max_bytes: int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    detect: Detect = Detect.AUTO
    upload_url: str | None = Field(None, description="Present while nothing was uploaded.")
    job_id: str | None = Field(None, description="The job of the current upload.")
    uploaded_type: str | None = Field(None, description="Media type declared by the upload.")
    source_bytes: int | None = Field(None, description="Size of the upload in bytes.")
    source_sha256: str | None = None
    source_format: str | None = Field(
        None, description="Detected format of the upload.", examples=["jpeg"]
    )
    source_frames: int | None = Field(
        None, description="Number of frames; only the first one is used."
    )
    content_type: str | None = Field(
        None, description="Of the stored image.", examples=[CONTENT_TYPE]
    )
    file_size: int | None = Field(None, description="Size of the stored image in bytes.")
    sha256: str | None = Field(None, description="Of the stored image.")
    etag: str | None = Field(None, description="ETag of the stored object.")
    storage_key: str | None = Field(None, description="Key of the stored object.")
    original_width: int | None = Field(
        None, description="Size of the upright original, before scaling."
    )
    original_height: int | None = None
    processed_width: int | None = Field(None, description="Size of the stored image.")
    processed_height: int | None = None
    processed_at: str | None = None
    has_alpha: bool | None = None
    detector: str | None = Field(None, description="The face detector; `none` if none ran.")
    detections: list[DetectionView] | None = None
    blur: str | None = Field(None, description="How detected regions were blurred.")
    thumbhash: str | None = Field(None, description="Tiny preview (ThumbHash), base64.")
    dominant_color: str | None = Field(None, examples=["#3a6ea5"])
    timings_ms: dict[str, float] | None = Field(None, description="Milliseconds by stage.")
    error: str | None = Field(None, description="Error message.")
    error_code: ErrorCode | str | None = None
    reason: str | None = Field(None, description="More specific than the code.")
    failed_at: str | None = None
    content_url: str | None = Field(None, description="URL of the stored image.")


class ImagePage(BaseModel):
    """A page of images, newest first."""

    items: list[ImageView]
    next: str | None = Field(
        None, description="Pass it as `before` for the next page; absent on the last page."
    )


#: The stage for each status of a record without progress.
_STAGES: Final = {
    ImageStatus.QUEUED: Stage.QUEUED,
    ImageStatus.PROCESSING: Stage.QUEUED,
    ImageStatus.PROCESSED: Stage.DONE,
    ImageStatus.FAILED: Stage.FAILED,
}
#: Members of `details` that are shown, with their types; a newer worker may write others.
_DETAILS: Final[dict[str, TypeAdapter[Any]]] = {
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


def image_view(record: ImageRecord, progress: ImageProgress | None) -> ImageView:
    """The view of an image; the result in the record takes precedence over the progress."""
    stage = _STAGES[record.status]
    percent, updated_at = STAGE_PROGRESS[stage], record.updated_at
    if progress is not None and not record.ended:
        stage, percent = progress.stage, progress.progress
        updated_at = max(progress.updated_at, updated_at)
    found = ImageView(
        image_id=record.image_id,
        status=record.status,
        stage=stage,
        progress=min(max(codec.parse_int(percent.encode()), -1), 100),
        created_at=record.created_at,
        updated_at=updated_at,
        filename=record.filename or None,
        declared_type=record.declared_type or None,
        max_bytes=record.max_bytes or None,
        metadata=codec.parse_payload(record.metadata),
        detect=record.detect,
        job_id=record.job_id or None,
        uploaded_type=record.uploaded_type or None,
        source_bytes=record.source_bytes or None,
        source_sha256=record.source_sha256 or None,
    )
    if record.status is ImageStatus.QUEUED:
        found.upload_url = image_upload_url(record.image_id)
    _add_end(found, record)
    return found


def _add_end(found: ImageView, record: ImageRecord) -> None:
    result, failure = record.result, record.failure
    if result is not None:
        for name in type(result).__dataclass_fields__:
            setattr(found, name, getattr(result, name))
        found.content_url = image_content_url(record.image_id)
    elif failure is not None:
        found.error, found.error_code = failure.error_message, failure.error_code
        found.failed_at = failure.failed_at
    detail = record.detail()
    for field, kind in _DETAILS.items():
        value = detail.get(field)
        if value is not None:
            try:
                setattr(found, field, kind.validate_python(value))
            except ValidationError:
                continue  # not valid: written by a third-party pipeline


def body_of(view: ImageView) -> bytes:
    return codec.dumps(view.model_dump(mode="json", exclude_none=True))
