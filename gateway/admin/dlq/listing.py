"""Reads dead letters, newest first, page by page; filters and groups them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluice.common import codec
from sluice.common.contracts.jobs import DataField, DeadReason, QueueField
from sluice.common.jobs import partitioned_queue
from sluice.common.jobs.pagination import MergedPages, PageSource
from sluice.common.jobs.partitioned_queue import DeadLetterId, PartitionedQueue
from sluice.common.jobs.protocols import QueueProtocol
from sluice.common.jobs.queue import DeadLetter
from sluice.gateway.http.problems import Problem

#: Most dead letters read at once from a partition, each with its payload; fewer if they have more
#: than BYTES_AT_ONCE.
PAGE: Final = 32
BYTES_AT_ONCE: Final = 1 << 20
_NEWEST: Final = "+"
#: No id is older, and Redis rejects a range that ends before it.
_OLDEST: Final = "0-0"


def dead_letter_pages(queue: QueueProtocol, before: str | None) -> PageSource[DeadLetter]:
    """Dead letters older than an id; None for all."""
    if not isinstance(queue, PartitionedQueue):
        return _SingleQueuePages(queue, before)
    count = len(queue.queues)
    start = None if before is None else partitioned_queue.parse_dead_letter_id(before, count)
    sources = [_PartitionPages(queue, number, start) for number in range(count)]
    return MergedPages(sources, queue.parse_id)


def size_of(letter: DeadLetter) -> int:
    """The approximate size in bytes."""
    return len(letter.fields) + len(letter.first_error) + len(letter.last_error)


class _SingleQueuePages:
    """Pages of the single queue."""

    def __init__(self, queue: QueueProtocol, before: str | None) -> None:
        self._queue = queue
        self._before = before or _NEWEST
        self.exhausted = before == _OLDEST

    async def next(self) -> list[DeadLetter]:
        page = await self._queue.dead_letters(self._before, PAGE)
        self.exhausted = len(page) < PAGE
        if page:
            self._before = page[-1].id
        return page


class _PartitionPages:
    """Pages of one partition. They start small, since a page of every partition is in memory."""

    def __init__(self, queue: PartitionedQueue, number: int, before: DeadLetterId | None) -> None:
        self._queue = queue
        self._number = number
        self._before = before
        self._most = max(1, PAGE // len(queue.queues))
        self.exhausted = False

    async def next(self) -> list[DeadLetter]:
        page = await self._queue.dead_letters_in(self._number, self._before, self._most)
        self.exhausted = len(page) < self._most
        if page:
            self._before = self._queue.parse_id(page[-1])
        if sum(map(size_of, page)) * len(self._queue.queues) > BYTES_AT_ONCE:
            self._most = max(1, self._most // 2)
        else:
            self._most = min(PAGE, self._most * 2)
        return page


#: Hexadecimal digits of a fingerprint.
FINGERPRINT_DIGITS = 16
#: Characters of a message and of a name that are part of a signature.
_MESSAGE_CHARS = 300
_NAME_CHARS = 100

#: A UUID, a hexadecimal number, or a long word of letters and digits; then any other number.
#: Matching takes linear time, however long a word is.
_ID_PATTERN = re.compile(
    r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}\b"
    r"|\b(?=[0-9]*[a-z])(?=[a-z]*[0-9])[0-9a-z]{16,}\b",
    re.ASCII | re.IGNORECASE,
)
_NUMBER_PATTERN = re.compile(r"[0-9]+(?:[.,:-][0-9]+)*", re.ASCII)


class FailureSignature(NamedTuple):
    """What dead letters with the same failure have in common; empty strings for missing values."""

    reason: str
    task: str
    kind: str
    message: str

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(codec.dumps(list(self))).hexdigest()[:FINGERPRINT_DIGITS]


def signature_of(letter: DeadLetter) -> FailureSignature:
    """The signature of a dead letter, also of one that a third-party worker wrote."""
    error = codec.parse_payload(letter.last_error) if letter.last_error else {}
    kind, message = error.get(DataField.KIND), error.get(DataField.MESSAGE)
    if kind is None and message is None:  # not an error of Sluice's: all of it is the message
        message = codec.decode_text(letter.last_error)
    return FailureSignature(
        letter.reason[:_NAME_CHARS],
        _name(letter.message_fields().get(QueueField.TASK)),
        _name(kind),
        mask(message) if isinstance(message, str) else "",
    )


def mask(message: str) -> str:
    """A message with ids and numbers masked, on one line, shortened."""
    text = " ".join(message[: 4 * _MESSAGE_CHARS].split())
    return _NUMBER_PATTERN.sub("#", _ID_PATTERN.sub("<id>", text))[:_MESSAGE_CHARS]


def _name(value: Any) -> str:
    return value[:_NAME_CHARS] if isinstance(value, str) else ""


#: Dead letters purged at once.
PURGED_AT_ONCE = 32
#: Most dead letters that one request scans, and that one page is searched in.
SCAN_MAX = 50_000
LIST_SCAN_MAX = 5_000
#: Bytes of dead letters after which a page ends early.
ANSWER_BYTES = 4 << 20


class DeadLetterFilter(NamedTuple):
    """Selects dead letters; None matches any."""

    reason: DeadReason | None = None
    fingerprint: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        if self.reason is not None and letter.reason != self.reason.value:
            return False
        return self.fingerprint is None or signature_of(letter).fingerprint == self.fingerprint


class DeadLetterListing(NamedTuple):
    """A page of dead letters, and the id of the next page; None on the last page."""

    letters: list[DeadLetter]
    next: str | None


async def iter_dead_letters(
    queue: QueueProtocol, before: str | None = None
) -> AsyncIterator[DeadLetter]:
    """Dead letters older than an id, newest first, without those added meanwhile."""
    pages = dead_letter_pages(queue, before)
    looked_at = 0
    while not pages.exhausted and looked_at < SCAN_MAX:
        page = await pages.next()
        for letter in page:
            yield letter
        looked_at += len(page)


async def list_dead_letters(
    queue: QueueProtocol, before: str | None, limit: int, choice: DeadLetterFilter
) -> DeadLetterListing:
    """Up to `limit` dead letters older than an id; fewer if they are long or rarely match."""
    found: list[DeadLetter] = []
    size = looked_at = 0
    last: str | None = None
    async for letter in iter_dead_letters(queue, before):
        if len(found) == limit or size > ANSWER_BYTES or looked_at == LIST_SCAN_MAX:
            return DeadLetterListing(found, last)  # at least this one follows
        looked_at += 1
        last = letter.id
        if choice.matches(letter):
            found.append(letter)
            size += size_of(letter)
    return DeadLetterListing(found, None)


async def purge(queue: QueueProtocol, choice: DeadLetterFilter) -> int:
    """Delete the selected dead letters; returns how many."""
    purged = 0
    batch: list[str] = []
    async for letter in iter_dead_letters(queue):
        if choice.matches(letter):
            batch.append(letter.id)
        if len(batch) == PURGED_AT_ONCE:
            purged += await queue.purge(batch)
            batch = []
    return purged + await queue.purge(batch)


def dead_letter_not_found() -> Problem:
    """The dead letter never existed, or was redriven, purged or trimmed."""
    return Problem(
        404,
        "dead_letter_not_found",
        "There is no such dead letter. It may have been purged, or redriven long ago.",
    )


#: Most dead letters and bytes that one request groups, and most groups that it returns.
GROUP_SCAN_MAX = 5_000
GROUP_SCAN_BYTES_MAX = 64 << 20
GROUPS_MAX = 200


@dataclass(slots=True)
class FailureGroup:
    """Dead letters with the same failure signature."""

    newest_id: str
    newest_job_id: str
    newest_ts: int
    oldest_id: str
    oldest_ts: int
    count: int = 1

    @classmethod
    def of(cls, letter: DeadLetter) -> FailureGroup:
        return cls(letter.id, letter.job_id, letter.ts, letter.id, letter.ts)

    def add(self, letter: DeadLetter) -> None:
        """Add a dead letter that is older than those before."""
        self.count += 1
        self.oldest_id, self.oldest_ts = letter.id, letter.ts


class FailureGroups(NamedTuple):
    """The groups, largest first. `complete`: none were left out."""

    groups: list[tuple[FailureSignature, FailureGroup]]
    looked_at: int
    complete: bool


async def group_by_failure(queue: QueueProtocol) -> FailureGroups:
    """Group the newest dead letters, at most GROUP_SCAN_MAX."""
    found: dict[FailureSignature, FailureGroup] = {}
    looked_at = size = 0
    complete = True
    async for letter in iter_dead_letters(queue):
        if looked_at == GROUP_SCAN_MAX or size > GROUP_SCAN_BYTES_MAX:
            complete = False
            break
        looked_at += 1
        size += size_of(letter)
        signature = signature_of(letter)
        if signature in found:
            found[signature].add(letter)
        else:
            found[signature] = FailureGroup.of(letter)
    # Sorting is stable: of groups of the same size, that with the newest entry comes first.
    groups = sorted(found.items(), key=lambda item: -item[1].count)
    return FailureGroups(groups[:GROUPS_MAX], looked_at, complete and len(groups) <= GROUPS_MAX)
