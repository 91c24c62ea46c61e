"""What goes into the image scripts and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from common.contracts.images import Detect, ErrorCode, Stage
from common.jobs.store import Fence


class ImageAnswer(str, Enum):
    """What a script found or did."""

    #: Done; the facts say what.
    OK = "ok"
    #: Done before, by this very upload, attempt or entry: nothing to do.
    ALREADY = "already"
    #: There is no such image (any more).
    MISSING = "missing"
    #: Somebody has claimed the upload before, or the image is not in a state for this.
    CONFLICT = "conflict"
    #: The upload or attempt is not the one that counts any more: nothing written.
    LOST = "lost"
    #: The Idempotency-Key came with another request before.
    REUSED = "reused"
    #: The queue is full; the facts have `backlog`.
    FULL = "full"
    #: The caller's key sends too fast (`wait_ms`), or has too many jobs (`active`).
    RATE = "rate"
    QUOTA = "quota"


class ImageOutcome(NamedTuple):
    """A script's answer, and what it says beside it (`ImageFact`)."""

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
    #: Key of the Idempotency-Key's entry, '' without; how the request is known; seconds it is kept.
    idempotency_key: str = ""
    fingerprint: str = ""
    idempotency_ttl_s: int = 0

    def __post_init__(self) -> None:
        if self.idempotency_key and not (self.fingerprint and self.idempotency_ttl_s > 0):
            raise ValueError("an Idempotency-Key needs the request's fingerprint, and a time")


@dataclass(frozen=True)
class CompletedUpload:
    """Bytes that lie in the spool, whole, under the upload's id."""

    image_id: str
    upload_id: str
    #: Fresh name of the core job that will process them.
    job_id: str
    content_type: str
    size_bytes: int
    sha256: str


class ProcessingAttempt(NamedTuple):
    """Which upload of which image a worker has; `fence` None for who repairs."""

    image_id: str
    upload_id: str
    fence: Fence | None = None


@dataclass(frozen=True)
class ProcessedImage:
    """A success, as its entry in the result stream tells it."""

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
    """A failure, likewise."""

    code: ErrorCode
    message: str
    details: bytes = b"{}"


class ImageProgress(NamedTuple):
    """`image:status:{image_id}` as it is."""

    stage: Stage
    progress: str
    updated_at: str
    error: str = ""
