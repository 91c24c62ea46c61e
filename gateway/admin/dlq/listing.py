"""Walking through the dead letters: newest first, page by page, never further than is sane."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from common import codec
from common.contracts.jobs import DataField, DeadReason, QueueField
from common.jobs import partitioned_queue
from common.jobs.pagination import MergedPages, PageSource
from common.jobs.partitioned_queue import DeadLetterId, PartitionedQueue
from common.jobs.protocols import QueueProtocol
from common.jobs.queue import DeadLetter
from gateway.http.problems import Problem

#: Letters read at once, each with its payload: of a partition at most, and fewer where they come
#: to more than so many bytes.
PAGE: Final = 32
BYTES_AT_ONCE: Final = 1 << 20
_NEWEST: Final = "+"
#: Nothing is older, and Redis does not even want to be asked.
_OLDEST: Final = "0-0"


def dead_letter_pages(queue: QueueProtocol, before: str | None) -> PageSource[DeadLetter]:
    """Letters older than an id, None for all of them."""
    if not isinstance(queue, PartitionedQueue):
        return _SingleQueuePages(queue, before)
    count = len(queue.queues)
    start = None if before is None else partitioned_queue.parse_dead_letter_id(before, count)
    sources = [_PartitionPages(queue, number, start) for number in range(count)]
    return MergedPages(sources, queue.parse_id)


def size_of(letter: DeadLetter) -> int:
    """About how many bytes it is."""
    return len(letter.fields) + len(letter.first_error) + len(letter.last_error)


class _SingleQueuePages:
    """The only queue there is."""

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
    """One of many: it begins with a few, since a page of each is held at once."""

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
#: Of a message, what tells errors apart; the rest is cut off.
_MESSAGE_CHARS = 300
_NAME_CHARS = 100

#: A UUID, a hexadecimal number, or a long word of letters and digits; then any number that is
#: left. None of them looks at a character more than a few times, however long a word is.
_ID_PATTERN = re.compile(
    r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"
    r"|\b0x[0-9a-f]+\b"
    r"|\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{8,}\b"
    r"|\b(?=[0-9]*[a-z])(?=[a-z]*[0-9])[0-9a-z]{16,}\b",
    re.ASCII | re.IGNORECASE,
)
_NUMBER_PATTERN = re.compile(r"[0-9]+(?:[.,:-][0-9]+)*", re.ASCII)


class FailureSignature(NamedTuple):
    """What letters that failed alike have in common; empty where they do not say."""

    reason: str
    task: str
    kind: str
    message: str

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(codec.dumps(list(self))).hexdigest()[:FINGERPRINT_DIGITS]


def signature_of(letter: DeadLetter) -> FailureSignature:
    """What the letter says, whoever put it there."""
    error = codec.parse_payload(letter.last_error) if letter.last_error else {}
    kind, message = error.get(DataField.KIND), error.get(DataField.MESSAGE)
    if kind is None and message is None:  # none of our errors: all of it is the message
        message = codec.decode_text(letter.last_error)
    return FailureSignature(
        letter.reason[:_NAME_CHARS],
        _name(letter.message_fields().get(QueueField.TASK)),
        _name(kind),
        mask(message) if isinstance(message, str) else "",
    )


def mask(message: str) -> str:
    """A message without what differs from job to job, on one line and not too long."""
    text = " ".join(message[: 4 * _MESSAGE_CHARS].split())
    return _NUMBER_PATTERN.sub("#", _ID_PATTERN.sub("<id>", text))[:_MESSAGE_CHARS]


def _name(value: Any) -> str:
    return value[:_NAME_CHARS] if isinstance(value, str) else ""


#: Letters purged at once.
PURGED_AT_ONCE = 32
#: Letters that one request looks at, many times what our own workers leave there; and that one
#: answer is looked for among.
SCAN_MAX = 50_000
LIST_SCAN_MAX = 5_000
#: Bytes of letters in one answer, after which it ends early.
ANSWER_BYTES = 4 << 20


class DeadLetterFilter(NamedTuple):
    """Which letters are meant; None stands for any."""

    reason: DeadReason | None = None
    fingerprint: str | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter is one of them."""
        if self.reason is not None and letter.reason != self.reason.value:
            return False
        return self.fingerprint is None or signature_of(letter).fingerprint == self.fingerprint


class DeadLetterListing(NamedTuple):
    """Some dead letters, and the id to go on from; None when there are no more."""

    letters: list[DeadLetter]
    next: str | None


async def iter_dead_letters(
    queue: QueueProtocol, before: str | None = None
) -> AsyncIterator[DeadLetter]:
    """Dead letters older than an id, newest first. Those that come meanwhile are not among them."""
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
    """Up to `limit` letters older than an id; fewer where they are long or hard to find."""
    found: list[DeadLetter] = []
    size = looked_at = 0
    last: str | None = None
    async for letter in iter_dead_letters(queue, before):
        if len(found) == limit or size > ANSWER_BYTES or looked_at == LIST_SCAN_MAX:
            return DeadLetterListing(found, last)  # there is at least this one more
        looked_at += 1
        last = letter.id
        if choice.matches(letter):
            found.append(letter)
            size += size_of(letter)
    return DeadLetterListing(found, None)


async def purge(queue: QueueProtocol, choice: DeadLetterFilter) -> int:
    """Forget the chosen ones; returns how many."""
    purged = 0
    doomed: list[str] = []
    async for letter in iter_dead_letters(queue):
        if choice.matches(letter):
            doomed.append(letter.id)
        if len(doomed) == PURGED_AT_ONCE:
            purged += await queue.purge(doomed)
            doomed = []
    return purged + await queue.purge(doomed)


def dead_letter_not_found() -> Problem:
    """It never was, or was redriven, purged or trimmed."""
    return Problem(
        404,
        "dead_letter_not_found",
        "There is no such dead letter. It may have been purged, or redriven long ago.",
    )


#: What one request looks at, and how many groups it answers with: the largest ones.
GROUP_SCAN_MAX = 5_000
GROUP_SCAN_BYTES_MAX = 64 << 20
GROUPS_MAX = 200


@dataclass(slots=True)
class FailureGroup:
    """Letters that failed alike. They are met newest first."""

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
        """One more, older than all before."""
        self.count += 1
        self.oldest_id, self.oldest_ts = letter.id, letter.ts


class FailureGroups(NamedTuple):
    """The groups, largest first, and whether nothing was left out."""

    groups: list[tuple[FailureSignature, FailureGroup]]
    looked_at: int
    complete: bool


async def group_by_failure(queue: QueueProtocol) -> FailureGroups:
    """Group the newest letters, as far as one request may look."""
    found: dict[FailureSignature, FailureGroup] = {}
    looked_at = size = 0
    complete = True
    async for letter in iter_dead_letters(queue):
        if looked_at == GROUP_SCAN_MAX or size > GROUP_SCAN_BYTES_MAX:
            complete = False
            break
        looked_at += 1
        size += size_of(letter)
        likeness = signature_of(letter)
        if likeness in found:
            found[likeness].add(letter)
        else:
            found[likeness] = FailureGroup.of(letter)
    # Sorting keeps the order of equals: the group with the newest letter comes first.
    groups = sorted(found.items(), key=lambda item: -item[1].count)
    return FailureGroups(groups[:GROUPS_MAX], looked_at, complete and len(groups) <= GROUPS_MAX)
