"""Metrics of images: counters of this process, and values read from Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.images import RESULT_GROUP, ImageKeys

#: Number of replies to `add_commands`.
REPLIES: Final = 3


class UploadOutcome(str, Enum):
    """Outcome of an upload."""

    ACCEPTED = "accepted"
    #: The image had been uploaded, or was being uploaded.
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    #: Not declared as an image or form, or empty.
    UNFIT = "unfit"
    #: The client disconnected or took too long.
    BROKEN_OFF = "broken_off"
    #: The queue was full, or the key had exceeded its rate or quota.
    REFUSED = "refused"
    #: No such image, or not authorised.
    UNKNOWN = "unknown"
    #: Redis or the spool failed.
    UNAVAILABLE = "unavailable"


class ResultOutcome(str, Enum):
    """Outcome of an entry of the result stream."""

    #: The result was written to the record.
    PERSISTED = "persisted"
    #: The record had the result already, or the image was deleted.
    KNOWN = "known"
    DEAD = "dead"


_BY_CODE: Final[Mapping[str, UploadOutcome]] = {
    "incomplete_body": UploadOutcome.BROKEN_OFF,
    "request_timeout": UploadOutcome.BROKEN_OFF,
    "body_too_large": UploadOutcome.TOO_LARGE,
    "already_uploaded": UploadOutcome.CONFLICT,
    "upload_lost": UploadOutcome.CONFLICT,
    "image_not_found": UploadOutcome.UNKNOWN,
    "task_not_allowed": UploadOutcome.UNKNOWN,
    "rate_limited": UploadOutcome.REFUSED,
    "quota_exceeded": UploadOutcome.REFUSED,
    "queue_full": UploadOutcome.REFUSED,
    "under_pressure": UploadOutcome.REFUSED,
    "spool_unavailable": UploadOutcome.UNAVAILABLE,
}


class ImageMetrics:
    """Counters of one gateway."""

    def __init__(self) -> None:
        self.uploads: Counter[UploadOutcome] = Counter()
        self.received_bytes = 0
        self.results: Counter[ResultOutcome] = Counter()

    def record_refusal(self, code: str) -> None:
        """Count an upload that was answered with a problem."""
        self.uploads[_BY_CODE.get(code, UploadOutcome.UNFIT)] += 1


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Values read from Redis; None for those it did not return."""

    #: Images that were uploaded and are not finished.
    inflight: int | None = None
    #: Dead-lettered results.
    dead_results: int | None = None
    #: Results that no gateway has read yet (Redis 7 and later), and results that were read and
    #: not acknowledged.
    results_lag: int | None = None
    results_pending: int | None = None


def add_commands(pipe: Any, keys: ImageKeys) -> None:
    """Add the commands to a pipeline."""
    pipe.zcard(keys.inflight)
    pipe.xlen(keys.dead_results)
    pipe.xinfo_groups(keys.results)


def parse_replies(replies: Sequence[Any]) -> ImageFacts:
    inflight, dead, groups = replies
    group: Mapping[str, Any] = {}
    if isinstance(groups, list):
        named = (
            each for each in groups if codec.decode_text(each.get("name", b"")) == RESULT_GROUP
        )
        group = next(named, {})
    return ImageFacts(
        _number(inflight), _number(dead), _number(group.get("lag")), _number(group.get("pending"))
    )


def _number(reply: Any) -> int | None:
    return reply if isinstance(reply, int) else None
