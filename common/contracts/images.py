"""Names of the image pipeline: keys, fields, stages, error codes. No logic."""

from __future__ import annotations

from enum import Enum
from typing import Final

from common.contracts.image_keys import IMAGES, ImageKeys, image_patterns

#: What lies in a file of its own, and is found here as well.
__all__ = ["IMAGES", "ImageKeys", "image_patterns"]

#: The internal tool that processes an image: its core job's payload has ids only.
IMAGE_TOOL: Final = "image.process"

#: Seconds that status and guard are kept after their last change.
STATUS_TTL_S: Final = 3600
UPLOAD_GUARD_VALUE: Final = "claimed"
#: Results kept in the stream, about.
RESULTS_KEPT: Final = 1000
RESULT_GROUP: Final = "api-workers"
#: How the names of our consumers begin, in that group.
RESULT_CONSUMER_PREFIX: Final = "api-"
#: Deliveries of a result after which it is put aside.
MOST_DELIVERIES: Final = 10
DEAD_RESULTS_KEPT: Final = 1000
RECORD_TTL_MAX_S: Final = 365 * 24 * 3600
#: Seconds in which a deletion whose reply was lost is known again.
DELETED_TTL_S: Final = 60
#: How an image's name begins and ends in the store.
STORAGE_PREFIX, STORAGE_SUFFIX = "images/", ".webp"
CONTENT_TYPE: Final = "image/webp"


class StatusField(str, Enum):
    """Fields of `image:status:{image_id}`."""

    STAGE = "stage"
    PROGRESS = "progress"
    UPDATED_AT = "updated_at"
    #: Only where the stage is `failed`.
    ERROR = "error"


class Stage(str, Enum):
    """How far an image has got."""

    QUEUED = "queued"
    VALIDATING = "validating"
    DECODING = "decoding"
    PROCESSING = "processing"
    ENCODING = "encoding"
    UPLOADING = "uploading"
    DONE = "done"
    FAILED = "failed"


#: What `progress` says at each stage; it never goes back within one upload.
PROGRESS: Final = {
    Stage.QUEUED: "0",
    Stage.VALIDATING: "10",
    Stage.DECODING: "30",
    Stage.PROCESSING: "55",
    Stage.ENCODING: "75",
    Stage.UPLOADING: "90",
    Stage.DONE: "100",
    Stage.FAILED: "-1",
}


class ResultField(str, Enum):
    """Fields of an entry of `image:result` that tells of a success, in their order."""

    IMAGE_ID = "image_id"
    STATUS = "status"
    STORAGE_KEY = "storage_key"
    SHA256 = "sha256"
    ETAG = "etag"
    FILE_SIZE = "file_size"
    CONTENT_TYPE = "content_type"
    ORIGINAL_WIDTH = "original_width"
    ORIGINAL_HEIGHT = "original_height"
    PROCESSED_WIDTH = "processed_width"
    PROCESSED_HEIGHT = "processed_height"
    PROCESSED_AT = "processed_at"


class FailureField(str, Enum):
    """Fields of one that tells of a failure."""

    IMAGE_ID = "image_id"
    STATUS = "status"
    ERROR_CODE = "error_code"
    ERROR_MESSAGE = "error_message"
    FAILED_AT = "failed_at"


class ResultStatus(str, Enum):
    """What an entry's `status` says."""

    PROCESSED = "processed"
    FAILED = "failed"


class DeadResultField(str, Enum):
    """What an entry of `image:result:dlq` has beside the original's fields."""

    REASON = "dlq_reason"
    DELIVERY_COUNT = "dlq_delivery_count"
    AT = "dlq_at"


class ErrorCode(str, Enum):
    """Why an image failed: by stage, or by what ended its job."""

    VALIDATION_FAILED = "VALIDATION_FAILED"
    DECODE_FAILED = "DECODE_FAILED"
    PROCESSING_FAILED = "PROCESSING_FAILED"
    ENCODING_FAILED = "ENCODING_FAILED"
    UPLOAD_FAILED = "UPLOAD_FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELED = "CANCELED"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class Reason(str, Enum):
    """Why an image failed, finer than its error code."""

    FILE_EMPTY = "file_empty"
    FILE_TOO_LARGE = "file_too_large"
    UNSUPPORTED_FORMAT = "unsupported_format"
    TYPE_MISMATCH = "type_mismatch"
    DIMENSIONS_EXCEED_LIMIT = "dimensions_exceed_limit"
    TOO_MANY_FRAMES = "too_many_frames"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    UNSUPPORTED_COLOR_MODE = "unsupported_color_mode"
    DETECTION_FAILED = "detection_failed"
    NOT_ENCODABLE = "not_encodable"
    #: Of the process that had it.
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"


class ImageStatus(str, Enum):
    """`status` of a record, and of answers about it."""

    #: Made, and nothing was uploaded yet.
    QUEUED = "queued"
    #: Uploaded; its job waits or runs.
    PROCESSING = "processing"
    PROCESSED = "processed"
    FAILED = "failed"


class RecordField(str, Enum):
    """Fields of `image:record:{image_id}`, beside those of its result."""

    IMAGE_ID = "image_id"
    #: ImageStatus.
    STATUS = "status"
    #: RFC 3339.
    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    #: As the client declared them; empty for nothing.
    FILENAME = "filename"
    DECLARED_TYPE = "declared_type"
    MAX_BYTES = "max_bytes"
    #: JSON object of the client's.
    METADATA = "metadata"
    #: Whether faces are looked for: `auto` or `none`.
    DETECT = "detect"
    #: Whose it is, and how ids of its jobs end.
    TENANT = "tenant"
    TAIL = "tail"
    #: Seconds the record is kept once something was uploaded.
    TTL_S = "ttl_s"
    #: The upload that holds the guard; until when it may go on, by Redis' clock.
    UPLOAD_ID = "upload_id"
    UPLOAD_DEADLINE_MS = "upload_deadline_ms"
    #: The core job of the upload that counts, and what it is about.
    JOB_ID = "job_id"
    UPLOADED_TYPE = "uploaded_type"
    SOURCE_BYTES = "source_bytes"
    SOURCE_SHA256 = "source_sha256"
    #: How it ended, as the entry of the result stream says it, JSON. Written together with that.
    OUTCOME = "outcome"
    #: What the pipeline found beside it: detections, placeholder, colour, format, JSON.
    DETAILS = "details"
    #: Entry of the result stream that the record was made of.
    RESULT_ENTRY_ID = "result_entry_id"
    #: Entries up to this one are about an earlier upload.
    RESULTS_AFTER = "results_after"


class DetailField(str, Enum):
    """Members of a record's `details`."""

    #: Finer than the error code: one of `Reason`.
    REASON = "reason"
    #: Format of what was uploaded, such as `jpeg`.
    SOURCE_FORMAT = "source_format"
    #: Frames of an animation, of which the first was taken.
    SOURCE_FRAMES = "source_frames"
    HAS_ALPHA = "has_alpha"
    #: Which model looked for faces; `none` where nobody did.
    DETECTOR = "detector"
    #: List of `{"kind", "x", "y", "width", "height", "score"}`, in pixels as stored.
    DETECTIONS = "detections"
    #: How they were made unrecognisable.
    BLUR = "blur"
    #: Base64 of a ThumbHash.
    THUMBHASH = "thumbhash"
    #: `#rrggbb`.
    DOMINANT_COLOR = "dominant_color"
    #: Milliseconds the pipeline took, by stage.
    TIMINGS_MS = "timings_ms"


class DetectionField(str, Enum):
    """Members of one detection."""

    KIND = "kind"
    X = "x"
    Y = "y"
    WIDTH = "width"
    HEIGHT = "height"
    SCORE = "score"


class Detect(str, Enum):
    """What a client wants of detection."""

    AUTO = "auto"
    NONE = "none"


class Detector(str, Enum):
    """Who looks for what in an image; several are joined by `+`."""

    CENTERFACE = "centerface"
    YUNET = "yunet"
    PLATES = "plates"
    NONE = "none"


class DetectionKind(str, Enum):
    """What was found."""

    FACE = "face"
    PLATE = "plate"


class Blur(str, Enum):
    """How what was found is made unrecognisable."""

    PIXELATE = "pixelate"
    GAUSSIAN = "gaussian"
    #: It is only counted.
    NONE = "none"


class ImageArgument(str, Enum):
    """Members of the core job's `args`."""

    IMAGE_ID = "image_id"
    UPLOAD_ID = "upload_id"


#: Who writes the events of the core job that tell its stages.
IMAGE_STEP: Final = "worker.image"


class StageField(str, Enum):
    """Members of the data of such an event, whose type is `progress`."""

    IMAGE_ID = "image_id"
    STAGE = "stage"
    PROGRESS = "progress"
    ATTEMPT = "attempt"


class JobResultField(str, Enum):
    """Members of the core job's result beside those of `ResultField`."""

    DETAILS = "details"
    #: The image was deleted meanwhile, or another upload counts: nothing was written.
    SUPERSEDED = "superseded"


class ImageErrorKind(str, Enum):
    """Kinds of errors of the core job."""

    #: There is something wrong with the image; its record says what.
    FAILED = "image_failed"
    #: The store did not take it.
    STORE = "image_store_failed"
    #: Its files in the spool could not be read or written.
    FILES = "image_files_failed"
    #: The process that worked on it ended in the middle.
    CRASHED = "image_process_crashed"


class ImageOperation(str, Enum):
    """One atomic operation each, in `common/images/lua`."""

    CREATE = "create_image"
    CLAIM = "claim_upload"
    HOLD = "hold_upload"
    RELEASE = "release_upload"
    SUBMIT = "submit_upload"
    ADVANCE = "advance_stage"
    SUCCEED = "succeed_image"
    FAIL = "fail_image"
    REPAIR = "repair_image"
    PERSIST = "persist_result"
    DEAD = "dead_result"
    REOPEN = "reopen_image"
    DELETE = "delete_image"


class ImageFact(str, Enum):
    """Members of what an operation says beside its answer."""

    IMAGE_ID = "image_id"
    JOB_ID = "job_id"
    UPLOAD_ID = "upload_id"
    STAGE = "stage"
    STATUS = "status"
    STORAGE_KEY = "storage_key"
    OUTCOME = "outcome"
    WAIT_MS = "wait_ms"
    ACTIVE = "active"
    BACKLOG = "backlog"


def storage_key(image_id: str) -> str:
    """Name of the processed image in the store."""
    return f"{STORAGE_PREFIX}{image_id}{STORAGE_SUFFIX}"
