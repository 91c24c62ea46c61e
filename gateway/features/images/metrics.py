"""What is counted of images: by this process, and what Redis knows of those under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from common import codec
from common.contracts.images import RESULT_GROUP, ImageKeys

#: How many replies `ask` brings.
REPLIES: Final = 3


class UploadOutcome(str, Enum):
    """How an upload fared, as it is counted."""

    ACCEPTED = "accepted"
    #: The image had been uploaded before, or was just then.
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    #: Declared as no image, no form, or empty.
    UNFIT = "unfit"
    #: The client left, or took too long.
    BROKEN_OFF = "broken_off"
    #: The queue was full, or the key had used up its rate or its quota.
    REFUSED = "refused"
    #: No such image, or no right to it.
    UNKNOWN = "unknown"
    #: Redis or the spool did not take it.
    UNAVAILABLE = "unavailable"


class ResultOutcome(str, Enum):
    """What became of an entry of the result stream."""

    #: The record was made of it.
    PERSISTED = "persisted"
    #: The record knew, or the image was gone.
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
    """Counted by one gateway."""

    def __init__(self) -> None:
        self.uploads: Counter[UploadOutcome] = Counter()
        self.received_bytes = 0
        self.results: Counter[ResultOutcome] = Counter()

    def record_refusal(self, code: str) -> None:
        """An upload was answered with a problem."""
        self.uploads[_BY_CODE.get(code, UploadOutcome.UNFIT)] += 1


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """None for what Redis did not tell."""

    #: Images that were uploaded and have not ended.
    inflight: int | None = None
    #: Results that were put aside.
    dead_results: int | None = None
    #: Results that no gateway was given yet (Redis 7 and later), and those that one was given and
    #: has not put into the record.
    results_lag: int | None = None
    results_pending: int | None = None


def add_commands(pipe: Any, keys: ImageKeys) -> None:
    """Add what has to be asked to a pipeline."""
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
