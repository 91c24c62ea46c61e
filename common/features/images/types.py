"""Arguments and results of the image scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from sluice.common.contracts.images import Detect, ErrorCode, Stage
from sluice.common.jobs.store import Fence


class ImageAnswer(str, Enum):
    """Answer of a script."""

    #: Done; see the facts.
    OK = "ok"
    #: Done before, by the same upload, attempt or entry: nothing to do.
    ALREADY = "already"
    #: The image does not exist (any more).
    MISSING = "missing"
    #: Another upload has the guard, or the image is in another state.
    CONFLICT = "conflict"
    #: The upload or attempt is not the current one any more: nothing written.
    LOST = "lost"
    #: The Idempotency-Key was used with another request.
    REUSED = "reused"
    #: The queue is full; the facts have `backlog`.
    FULL = "full"
    #: The caller's key exceeds its rate (`wait_ms`) or its quota (`active`).
    RATE = "rate"
    QUOTA = "quota"


class ImageOutcome(NamedTuple):
    """A script's answer and its facts (`ImageFact`)."""

    answer: ImageAnswer
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class NewImage:
    """A validated request for an image."""

    image_id: str
    #: Seconds the record is kept once something was uploaded.
    ttl_s: int
    filename: str = ""
    declared_type: str = ""
    max_bytes: int = 0
    metadata: bytes = b"{}"
    detect: Detect = Detect.AUTO
    tenant: str = ""
    tail: str = ""
    #: Key of the Idempotency-Key's entry ('' without), fingerprint of the request, seconds kept.
    idempotency_key: str = ""
    fingerprint: str = ""
    idempotency_ttl_s: int = 0

    def __post_init__(self) -> None:
        if self.idempotency_key and not (self.fingerprint and self.idempotency_ttl_s > 0):
            raise ValueError("an Idempotency-Key needs the request's fingerprint, and a time")


@dataclass(frozen=True)
class CompletedUpload:
    """A complete upload in the spool."""

    image_id: str
    upload_id: str
    #: New id of the core job that will process it.
    job_id: str
    content_type: str
    size_bytes: int
    sha256: str


class ProcessingAttempt(NamedTuple):
    """The upload that a worker processes; `fence` is None for repairs."""

    image_id: str
    upload_id: str
    fence: Fence | None = None


@dataclass(frozen=True)
class ProcessedImage:
    """A success, with the values of its result entry."""

    storage_key: str
    sha256: str
    etag: str
    file_size: int
    content_type: str
    original_width: int
    original_height: int
    processed_width: int
    processed_height: int
    #: JSON object of `DetailField`.
    details: bytes = b"{}"


@dataclass(frozen=True)
class ProcessingFailure:
    """A failure."""

    code: ErrorCode
    message: str
    details: bytes = b"{}"


class ImageProgress(NamedTuple):
    """The content of `image:status:{image_id}`."""

    stage: Stage
    progress: str
    updated_at: str
    error: str = ""
