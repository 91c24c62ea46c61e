"""The failures of an image, as its record and its result entry report them."""

from __future__ import annotations

from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.images import (
    DetailField,
    ErrorCode,
    FailureReason,
    ImageErrorKind,
    Stage,
)
from sluice.common.contracts.jobs import DataField, ErrorKind
from sluice.common.features.images.types import ProcessingFailure
from sluice.worker.errors import JobError, TransientError
from sluice.worker.features.images.pixels.types import REASON_MESSAGES, InvalidImage


class ImageFailed(JobError):
    """The image is invalid; its record already has the reason."""

    kind = ImageErrorKind.FAILED

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")


class StoreFailed(TransientError):
    """The store rejected the object repeatedly; a later attempt may succeed."""

    kind = ImageErrorKind.STORE


class FilesFailed(TransientError):
    """Spool files could not be read or written; not a fault of the image."""

    kind = ImageErrorKind.FILES


class ProcessCrashed(TransientError):
    """The child process crashed for the first time; a second crash fails the image."""

    kind = ImageErrorKind.CRASHED


class UploadSuperseded(Exception):
    """The image was deleted or another upload replaced this one."""

    def __init__(self, deleted: bool) -> None:
        super().__init__()
        self.deleted = deleted


#: Error code of an image by the kind of its job error.
CODE_BY_KIND = {
    ImageErrorKind.STORE: ErrorCode.UPLOAD_FAILED,
    ImageErrorKind.CRASHED: ErrorCode.PROCESSING_FAILED,
}


#: Longer messages are cut.
MOST_CHARS: Final = 500

#: Error code by the stage in which the process failed.
_CODE_BY_STAGE: Final = {
    Stage.VALIDATING: ErrorCode.VALIDATION_FAILED,
    Stage.DECODING: ErrorCode.DECODE_FAILED,
    Stage.PROCESSING: ErrorCode.PROCESSING_FAILED,
    Stage.ENCODING: ErrorCode.ENCODING_FAILED,
}

CANCELED: Final = ProcessingFailure(ErrorCode.CANCELED, "the processing was canceled")
UPLOAD_MISSING: Final = ProcessingFailure(
    ErrorCode.INTERNAL_ERROR,
    "the upload is not in the spool of this worker; gateways and workers must share the directory "
    "(IMAGE_SPOOL_DIR). Upload it again",
)
JOB_LOST: Final = ProcessingFailure(
    ErrorCode.INTERNAL_ERROR,
    "its core job ended without a result or is gone: Redis lost it, it expired while waiting, "
    "or a worker without image support took it. Run every worker with `python -m sluice.worker`, "
    "then upload it again",
)
ECHO_WORKER: Final = ProcessingFailure(
    ErrorCode.INTERNAL_ERROR,
    "an echo worker cannot process images; run `python -m sluice.worker` instead "
    '(`make run ARGS="--worker real"`), then upload it again',
)


def invalid_image_failure(refused: InvalidImage) -> ProcessingFailure:
    return ProcessingFailure(refused.code, refused.message, _details(refused.reason))


def stage_failure(stage: Stage, reason: FailureReason) -> ProcessingFailure:
    """Failure of a process that did not complete a stage."""
    code = _CODE_BY_STAGE.get(stage, ErrorCode.PROCESSING_FAILED)
    return ProcessingFailure(code, REASON_MESSAGES[reason], _details(reason.value))


def timeout_failure(timeout_s: float) -> ProcessingFailure:
    return ProcessingFailure(
        ErrorCode.TIMEOUT, f"processing takes longer than {timeout_s:g} s (IMAGE_TIMEOUT_S)"
    )


def internal_failure(message: str) -> ProcessingFailure:
    return ProcessingFailure(ErrorCode.INTERNAL_ERROR, message[:MOST_CHARS])


def core_job_failure(error: bytes) -> ProcessingFailure:
    """The failure of an image, from the stored error of its core job."""
    try:
        stored: Any = codec.loads(error)
    except ValueError:
        stored = None
    stored = stored if isinstance(stored, dict) else {}
    kind = str(stored.get(DataField.KIND) or "")
    message = str(stored.get(DataField.MESSAGE) or "its core job failed")[:MOST_CHARS]
    if kind == ErrorKind.TIMEOUT:
        return ProcessingFailure(ErrorCode.TIMEOUT, message)
    return ProcessingFailure(CODE_BY_KIND.get(kind, ErrorCode.INTERNAL_ERROR), message)


def _details(reason: str) -> bytes:
    return codec.dumps({DetailField.REASON: reason})
