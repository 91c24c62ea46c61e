"""Names of the image pipeline: keys, fields, stages, error codes. No logic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


@dataclass(frozen=True)
class ImageKeys:
    """Every key of the images."""

    #: The home partition's (`JobKeys.tag`).
    tag: str = ""

    def status(self, image_id: str) -> str:
        """HASH, the progress; also what hints call an image."""
        return f"{self.tag}image:status:{image_id}"

    def upload(self, image_id: str) -> str:
        """STRING, the guard: something was uploaded, or is just now."""
        return f"{self.tag}image:upload:{image_id}"

    @property
    def results(self) -> str:
        return f"{self.tag}image:result"

    @property
    def dead_results(self) -> str:
        """STREAM, entries of the former that nobody could make sense of."""
        return f"{self.tag}image:result:dlq"

    def record(self, image_id: str) -> str:
        return f"{self.tag}image:record:{image_id}"

    def deleted(self, image_id: str) -> str:
        """HASH, by a call's token what it deleted a moment ago, should its reply be lost."""
        return f"{self.tag}image:deleted:{image_id}"

    @property
    def inflight(self) -> str:
        """ZSET, images that were uploaded and are not settled, by when that was (ms)."""
        return f"{self.tag}image:inflight"

    def index(self, tenant: str = "") -> str:
        """ZSET, image ids by the time they were made; the nameless one has everybody's."""
        return f"{self.tag}image:index:{tenant}" if tenant else f"{self.tag}image:index"

    def idempotency(self, key: str, tenant: str = "") -> str:
        """STRING, `{fingerprint} {image_id}` that an Idempotency-Key has made."""
        owner = f"img.of:{tenant}" if tenant else "img"
        return f"{self.tag}idempotency.{owner}:{key}"

    @property
    def reconciler(self) -> str:
        """STRING, who looks after stranded images just now; one at a time."""
        return f"{self.tag}image:reconciler"

    @property
    def stores(self) -> str:
        """SET, ids of directories whose images have their records here."""
        return f"{self.tag}image:stores"


#: All keys above but remembered keys, with which only gateways have to do.
IMAGE_KEYS_PATTERN: Final = "image:*"


def image_key_patterns(tag: str = "") -> tuple[str, ...]:
    return (f"{tag}{IMAGE_KEYS_PATTERN}", f"{tag}idempotency.img:*", f"{tag}idempotency.img.of:*")


#: What lies in a file of its own, and is found here as well.
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


class ImageStatusField:
    """Fields of `image:status:{image_id}`."""

    STAGE: Final = "stage"
    PROGRESS: Final = "progress"
    UPDATED_AT: Final = "updated_at"
    #: Only where the stage is `failed`.
    ERROR: Final = "error"


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
    """Fields of an entry of `image:result` that tells of a success, in their order."""

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
    """Fields of one that tells of a failure."""

    IMAGE_ID: Final = "image_id"
    STATUS: Final = "status"
    ERROR_CODE: Final = "error_code"
    ERROR_MESSAGE: Final = "error_message"
    FAILED_AT: Final = "failed_at"


class ImageResultStatus(str, Enum):
    """What an entry's `status` says."""

    PROCESSED = "processed"
    FAILED = "failed"


class DeadResultField:
    """What an entry of `image:result:dlq` has beside the original's fields."""

    REASON: Final = "dlq_reason"
    DELIVERY_COUNT: Final = "dlq_delivery_count"
    AT: Final = "dlq_at"


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


class FailureReason(str, Enum):
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


class ImageRecordField:
    """Fields of `image:record:{image_id}`, beside those of its result."""

    IMAGE_ID: Final = "image_id"
    #: ImageStatus.
    STATUS: Final = "status"
    #: RFC 3339.
    CREATED_AT: Final = "created_at"
    UPDATED_AT: Final = "updated_at"
    #: As the client declared them; empty for nothing.
    FILENAME: Final = "filename"
    DECLARED_TYPE: Final = "declared_type"
    MAX_BYTES: Final = "max_bytes"
    #: JSON object of the client's.
    METADATA: Final = "metadata"
    #: Whether faces are looked for: `auto` or `none`.
    DETECT: Final = "detect"
    #: Whose it is, and how ids of its jobs end.
    TENANT: Final = "tenant"
    TAIL: Final = "tail"
    #: Seconds the record is kept once something was uploaded.
    TTL_S: Final = "ttl_s"
    #: The upload that holds the guard; until when it may go on, by Redis' clock.
    UPLOAD_ID: Final = "upload_id"
    UPLOAD_DEADLINE_MS: Final = "upload_deadline_ms"
    #: The core job of the upload that counts, and what it is about.
    JOB_ID: Final = "job_id"
    UPLOADED_TYPE: Final = "uploaded_type"
    SOURCE_BYTES: Final = "source_bytes"
    SOURCE_SHA256: Final = "source_sha256"
    #: How it ended, as the entry of the result stream says it, JSON. Written together with that.
    OUTCOME: Final = "outcome"
    #: What the pipeline found beside it: detections, placeholder, colour, format, JSON.
    DETAILS: Final = "details"
    #: Entry of the result stream that the record was made of.
    RESULT_ENTRY_ID: Final = "result_entry_id"
    #: Entries up to this one are about an earlier upload.
    RESULTS_AFTER: Final = "results_after"


class DetailField:
    """Members of a record's `details`."""

    #: Finer than the error code: one of `ReasonQuery`.
    REASON: Final = "reason"
    #: Format of what was uploaded, such as `jpeg`.
    SOURCE_FORMAT: Final = "source_format"
    #: Frames of an animation, of which the first was taken.
    SOURCE_FRAMES: Final = "source_frames"
    HAS_ALPHA: Final = "has_alpha"
    #: Which model looked for faces; `none` where nobody did.
    DETECTOR: Final = "detector"
    #: List of `{"kind", "x", "y", "width", "height", "score"}`, in pixels as stored.
    DETECTIONS: Final = "detections"
    #: How they were made unrecognisable.
    BLUR: Final = "blur"
    #: Base64 of a ThumbHash.
    THUMBHASH: Final = "thumbhash"
    #: `#rrggbb`.
    DOMINANT_COLOR: Final = "dominant_color"
    #: Milliseconds the pipeline took, by stage.
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


class ImageArgument:
    """Members of the core job's `args`."""

    IMAGE_ID: Final = "image_id"
    UPLOAD_ID: Final = "upload_id"


#: Who writes the events of the core job that tell its stages.
IMAGE_STEP: Final = "worker.image"


class StageField:
    """Members of the data of such an event, whose type is `progress`."""

    IMAGE_ID: Final = "image_id"
    STAGE: Final = "stage"
    PROGRESS: Final = "progress"
    ATTEMPT: Final = "attempt"


class ImageJobResultField:
    """Members of the core job's result beside those of `ImageResultField`."""

    DETAILS: Final = "details"
    #: The image was deleted meanwhile, or another upload counts: nothing was written.
    SUPERSEDED: Final = "superseded"


class ImageErrorKind:
    """Kinds of errors of the core job."""

    #: There is something wrong with the image; its record says what.
    FAILED: Final = "image_failed"
    #: The store did not take it.
    STORE: Final = "image_store_failed"
    #: Its files in the spool could not be read or written.
    FILES: Final = "image_files_failed"
    #: The process that worked on it ended in the middle.
    CRASHED: Final = "image_process_crashed"


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


class ImageFact:
    """Members of what an operation says beside its answer."""

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
