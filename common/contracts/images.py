"""Names of the image pipeline: keys, fields, stages, error codes. No logic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


@dataclass(frozen=True)
class ImageKeys:
    """Every Redis key of images."""

    #: The tag of partition 0 (`JobKeys.tag`).
    tag: str = ""

    def status(self, image_id: str) -> str:
        """HASH, the progress of an image; also its name in hints."""
        return f"{self.tag}image:status:{image_id}"

    def upload(self, image_id: str) -> str:
        """STRING, the upload guard: an upload has finished or is in progress."""
        return f"{self.tag}image:upload:{image_id}"

    @property
    def results(self) -> str:
        return f"{self.tag}image:result"

    @property
    def dead_results(self) -> str:
        """STREAM, dead letters: entries of `results` that could not be processed."""
        return f"{self.tag}image:result:dlq"

    def record(self, image_id: str) -> str:
        return f"{self.tag}image:record:{image_id}"

    def deleted(self, image_id: str) -> str:
        """HASH, token of a call to what it deleted, kept briefly in case its reply was lost."""
        return f"{self.tag}image:deleted:{image_id}"

    @property
    def inflight(self) -> str:
        """ZSET, uploaded images that are not finished, by upload time in milliseconds."""
        return f"{self.tag}image:inflight"

    def index(self, tenant: str = "") -> str:
        """ZSET, image ids by creation time; without a tenant, those of all tenants."""
        return f"{self.tag}image:index:{tenant}" if tenant else f"{self.tag}image:index"

    def idempotency(self, key: str, tenant: str = "") -> str:
        """STRING, `{fingerprint} {image_id}` of an Idempotency-Key."""
        owner = f"img.of:{tenant}" if tenant else "img"
        return f"{self.tag}idempotency.{owner}:{key}"

    @property
    def reconciler(self) -> str:
        """STRING, lock of the worker that reconciles images; one at a time."""
        return f"{self.tag}image:reconciler"

    @property
    def stores(self) -> str:
        """SET, ids of storage directories whose images have their records here."""
        return f"{self.tag}image:stores"


#: All keys above except idempotency keys, which only gateways use.
IMAGE_KEYS_PATTERN: Final = "image:*"


def image_key_patterns(tag: str = "") -> tuple[str, ...]:
    return (f"{tag}{IMAGE_KEYS_PATTERN}", f"{tag}idempotency.img:*", f"{tag}idempotency.img.of:*")


#: The internal tool that processes an image; the payload of its core job has ids only.
IMAGE_TOOL: Final = "image.process"

#: Seconds that status and upload guard are kept after their last change.
STATUS_TTL_S: Final = 3600
UPLOAD_GUARD_VALUE: Final = "claimed"
#: Approximate length of the result stream.
RESULTS_KEPT: Final = 1000
RESULT_GROUP: Final = "api-workers"
#: Prefix of Sluice's consumer names in that group.
RESULT_CONSUMER_PREFIX: Final = "api-"
#: Deliveries of a result after which it is dead-lettered.
MOST_DELIVERIES: Final = 10
DEAD_RESULTS_KEPT: Final = 1000
RECORD_TTL_MAX_S: Final = 365 * 24 * 3600
#: Seconds in which a repeated deletion is recognised, if its reply was lost.
DELETED_TTL_S: Final = 60
#: Prefix and suffix of an image's name in the store.
STORAGE_PREFIX, STORAGE_SUFFIX = "images/", ".webp"
CONTENT_TYPE: Final = "image/webp"


class ImageStatusField:
    """Fields of `image:status:{image_id}`."""

    STAGE: Final = "stage"
    PROGRESS: Final = "progress"
    UPDATED_AT: Final = "updated_at"
    #: Only if the stage is `failed`.
    ERROR: Final = "error"


class Stage(str, Enum):
    """Processing stage of an image."""

    QUEUED = "queued"
    VALIDATING = "validating"
    DECODING = "decoding"
    PROCESSING = "processing"
    ENCODING = "encoding"
    UPLOADING = "uploading"
    DONE = "done"
    FAILED = "failed"


#: `progress` at each stage; it never decreases within one upload.
STAGE_PROGRESS: Final = {
    Stage.QUEUED: "0",
    Stage.VALIDATING: "10",
    Stage.DECODING: "30",
    Stage.PROCESSING: "55",
    Stage.ENCODING: "75",
    Stage.UPLOADING: "90",
    Stage.DONE: "100",
    Stage.FAILED: "-1",
}


class ImageResultField:
    """Fields of a success entry in `image:result`, in their order."""

    IMAGE_ID: Final = "image_id"
    STATUS: Final = "status"
    STORAGE_KEY: Final = "storage_key"
    SHA256: Final = "sha256"
    ETAG: Final = "etag"
    FILE_SIZE: Final = "file_size"
    CONTENT_TYPE: Final = "content_type"
    ORIGINAL_WIDTH: Final = "original_width"
    ORIGINAL_HEIGHT: Final = "original_height"
    PROCESSED_WIDTH: Final = "processed_width"
    PROCESSED_HEIGHT: Final = "processed_height"
    PROCESSED_AT: Final = "processed_at"


class ImageFailureField:
    """Fields of a failure entry in `image:result`."""

    IMAGE_ID: Final = "image_id"
    STATUS: Final = "status"
    ERROR_CODE: Final = "error_code"
    ERROR_MESSAGE: Final = "error_message"
    FAILED_AT: Final = "failed_at"


class ImageResultStatus(str, Enum):
    """Values of an entry's `status`."""

    PROCESSED = "processed"
    FAILED = "failed"


class DeadResultField:
    """Fields of an entry in `image:result:dlq` in addition to the original's."""

    REASON: Final = "dlq_reason"
    DELIVERY_COUNT: Final = "dlq_delivery_count"
    AT: Final = "dlq_at"


class ErrorCode(str, Enum):
    """Why an image failed: by stage, or by the outcome of its job."""

    VALIDATION_FAILED = "VALIDATION_FAILED"
    DECODE_FAILED = "DECODE_FAILED"
    PROCESSING_FAILED = "PROCESSING_FAILED"
    ENCODING_FAILED = "ENCODING_FAILED"
    UPLOAD_FAILED = "UPLOAD_FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELED = "CANCELED"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class FailureReason(str, Enum):
    """Why an image failed, more specific than its error code."""

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
    #: Of the process that handled it.
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"


class ImageStatus(str, Enum):
    """`status` of an image record, and of responses about it."""

    #: Created; nothing was uploaded yet.
    QUEUED = "queued"
    #: Uploaded; its job is waiting or running.
    PROCESSING = "processing"
    PROCESSED = "processed"
    FAILED = "failed"


class ImageRecordField:
    """Fields of `image:record:{image_id}` in addition to those of its result."""

    IMAGE_ID: Final = "image_id"
    #: ImageStatus.
    STATUS: Final = "status"
    #: RFC 3339.
    CREATED_AT: Final = "created_at"
    UPDATED_AT: Final = "updated_at"
    #: As declared by the client; empty if not.
    FILENAME: Final = "filename"
    DECLARED_TYPE: Final = "declared_type"
    MAX_BYTES: Final = "max_bytes"
    #: The client's JSON object.
    METADATA: Final = "metadata"
    #: Whether faces are detected: `auto` or `none`.
    DETECT: Final = "detect"
    #: The owner, and the suffix of its job ids.
    TENANT: Final = "tenant"
    TAIL: Final = "tail"
    #: Seconds the record is kept once something was uploaded.
    TTL_S: Final = "ttl_s"
    #: The upload that holds the guard, and its deadline by the clock of Redis.
    UPLOAD_ID: Final = "upload_id"
    UPLOAD_DEADLINE_MS: Final = "upload_deadline_ms"
    #: The core job of the current upload, and facts about the upload.
    JOB_ID: Final = "job_id"
    UPLOADED_TYPE: Final = "uploaded_type"
    SOURCE_BYTES: Final = "source_bytes"
    SOURCE_SHA256: Final = "source_sha256"
    #: The final result, as in the result stream (JSON). Written together with that entry.
    OUTCOME: Final = "outcome"
    #: Further results of the pipeline (JSON): detections, placeholder, colour, format.
    DETAILS: Final = "details"
    #: The entry of the result stream from which the record was written.
    RESULT_ENTRY_ID: Final = "result_entry_id"
    #: Entries up to this one belong to an earlier upload.
    RESULTS_AFTER: Final = "results_after"


class DetailField:
    """Members of a record's `details`."""

    #: More specific than the error code: one of `FailureReason`.
    REASON: Final = "reason"
    #: Format of the upload, such as `jpeg`.
    SOURCE_FORMAT: Final = "source_format"
    #: Number of frames of an animation; only the first is used.
    SOURCE_FRAMES: Final = "source_frames"
    HAS_ALPHA: Final = "has_alpha"
    #: The detection model; `none` without one.
    DETECTOR: Final = "detector"
    #: List of `{"kind", "x", "y", "width", "height", "score"}`, in pixels of the stored image.
    DETECTIONS: Final = "detections"
    #: How detected regions are obscured.
    BLUR: Final = "blur"
    #: Base64 of a ThumbHash.
    THUMBHASH: Final = "thumbhash"
    #: `#rrggbb`.
    DOMINANT_COLOR: Final = "dominant_color"
    #: Milliseconds per stage.
    TIMINGS_MS: Final = "timings_ms"


class DetectionField:
    """Members of one detection."""

    KIND: Final = "kind"
    X: Final = "x"
    Y: Final = "y"
    WIDTH: Final = "width"
    HEIGHT: Final = "height"
    SCORE: Final = "score"


class Detect(str, Enum):
    """Detection that a client requests."""

    AUTO = "auto"
    NONE = "none"


class Detector(str, Enum):
    """Detection models; several are joined by `+`."""

    CENTERFACE = "centerface"
    YUNET = "yunet"
    PLATES = "plates"
    NONE = "none"


class DetectionKind(str, Enum):
    """What was detected."""

    FACE = "face"
    PLATE = "plate"


class Blur(str, Enum):
    """How detected regions are obscured."""

    PIXELATE = "pixelate"
    GAUSSIAN = "gaussian"
    #: They are only counted.
    NONE = "none"


class ImageArgument:
    """Members of the core job's `args`."""

    IMAGE_ID: Final = "image_id"
    UPLOAD_ID: Final = "upload_id"


#: `step` of the core job's events that report stages.
IMAGE_STEP: Final = "worker.image"


class StageField:
    """Members of the data of such an event, whose type is `progress`."""

    IMAGE_ID: Final = "image_id"
    STAGE: Final = "stage"
    PROGRESS: Final = "progress"
    ATTEMPT: Final = "attempt"


class ImageJobResultField:
    """Members of the core job's result in addition to those of `ImageResultField`."""

    DETAILS: Final = "details"
    #: The image was deleted, or another upload replaced this one: nothing was written.
    SUPERSEDED: Final = "superseded"


class ImageErrorKind:
    """Error kinds of the core job."""

    #: The image is invalid; its record has the reason.
    FAILED: Final = "image_failed"
    #: The image could not be stored.
    STORE: Final = "image_store_failed"
    #: Its files in the spool could not be read or written.
    FILES: Final = "image_files_failed"
    #: The process that handled it died.
    CRASHED: Final = "image_process_crashed"


class ImageOperation(str, Enum):
    """Atomic operations, one Lua file each in `common/features/images/lua`."""

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


class ImageFact:
    """Members of the facts that come with an operation's answer."""

    IMAGE_ID: Final = "image_id"
    JOB_ID: Final = "job_id"
    UPLOAD_ID: Final = "upload_id"
    STAGE: Final = "stage"
    STATUS: Final = "status"
    STORAGE_KEY: Final = "storage_key"
    OUTCOME: Final = "outcome"
    WAIT_MS: Final = "wait_ms"
    ACTIVE: Final = "active"
    BACKLOG: Final = "backlog"


def storage_key(image_id: str) -> str:
    """Name of the processed image in the store."""
    return f"{STORAGE_PREFIX}{image_id}{STORAGE_SUFFIX}"
