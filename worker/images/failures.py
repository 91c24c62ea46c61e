"""Every way in which an image can fail, as its record and its result entry tell it."""

from __future__ import annotations

from typing import Any, Final

from common import codec
from common.contracts.images import DetailField, ErrorCode, Reason, Stage
from common.contracts.jobs import DataField, ErrorKind
from common.images.types import Failed
from worker.images.errors import CODES
from worker.images.pixels.order import MESSAGES, Refused

#: A longer message is cut.
MOST_CHARS: Final = 500

#: Codes by the stage in which a process got stuck.
_BY_STAGE: Final = {
    Stage.VALIDATING: ErrorCode.VALIDATION_FAILED,
    Stage.DECODING: ErrorCode.DECODE_FAILED,
    Stage.PROCESSING: ErrorCode.PROCESSING_FAILED,
    Stage.ENCODING: ErrorCode.ENCODING_FAILED,
}

CANCELED: Final = Failed(ErrorCode.CANCELED, "the processing was canceled")
NO_FILE: Final = Failed(
    ErrorCode.INTERNAL_ERROR,
    "the upload is not in the spool of this worker; gateways and workers must share the directory "
    "(IMAGE_SPOOL_DIR). Upload it again",
)
LOST: Final = Failed(
    ErrorCode.INTERNAL_ERROR,
    "its core job ended without it, or is gone: Redis lost it, it waited longer than it is kept, "
    "or a worker that does no images took it. See that every worker runs `python -m worker`, then "
    "upload it again",
)
ONLY_ECHOES: Final = Failed(
    ErrorCode.INTERNAL_ERROR,
    "this worker only echoes, and an echo of an image is none; run `python -m worker` in its place "
    '(`make run ARGS="--worker real"`), then upload it again',
)


def of_refusal(refused: Refused) -> Failed:
    """The image itself is wrong."""
    return Failed(refused.code, refused.message, _details(refused.reason))


def of_stage(stage: Stage, reason: Reason) -> Failed:
    """The process did not get beyond a stage."""
    code = _BY_STAGE.get(stage, ErrorCode.PROCESSING_FAILED)
    return Failed(code, MESSAGES[reason], _details(reason.value))


def of_time(timeout_s: float) -> Failed:
    """It took too long."""
    return Failed(
        ErrorCode.TIMEOUT, f"processing takes longer than {timeout_s:g} s (IMAGE_TIMEOUT_S)"
    )


def internal(message: str) -> Failed:
    """Something of ours is wrong."""
    return Failed(ErrorCode.INTERNAL_ERROR, message[:MOST_CHARS])


def of_job(error: bytes) -> Failed:
    """What a core job's stored error means for its image."""
    try:
        stored: Any = codec.loads(error)
    except ValueError:
        stored = None
    stored = stored if isinstance(stored, dict) else {}
    kind = str(stored.get(DataField.KIND.value) or "")
    message = str(stored.get(DataField.MESSAGE.value) or "its core job failed")[:MOST_CHARS]
    if kind == ErrorKind.TIMEOUT.value:
        return Failed(ErrorCode.TIMEOUT, message)
    return Failed(CODES.get(kind, ErrorCode.INTERNAL_ERROR), message)


def _details(reason: str) -> bytes:
    return codec.dumps({DetailField.REASON.value: reason})
