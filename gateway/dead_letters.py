"""Walking through the dead letters: newest first, page by page, never further than is sane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from common.contracts.jobs import DeadReason
from common.queue import DeadLetter, QueueStore
from gateway.letter_pages import pages_of, size_of
from gateway.likeness import likeness_of
from gateway.problems import Problem

#: Letters purged at once.
PURGED_AT_ONCE = 32
#: Letters that one request looks at, many times what our own workers leave there; and that one
#: answer is looked for among.
LOOKED_AT_MAX = 50_000
LISTED_FROM_MAX = 5_000
#: Bytes of letters in one answer, after which it ends early.
ANSWER_BYTES = 4 << 20


class Choice(NamedTuple):
    """Which letters are meant; None stands for any."""

    reason: DeadReason | None = None
    fingerprint: str | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether the letter is one of them."""
        if self.reason is not None and letter.reason != self.reason.value:
            return False
        return self.fingerprint is None or likeness_of(letter).fingerprint == self.fingerprint


class Listed(NamedTuple):
    """Some dead letters, and the id to go on from; None when there are no more."""

    letters: list[DeadLetter]
    next: str | None


async def walk(queue: QueueStore, before: str | None = None) -> AsyncIterator[DeadLetter]:
    """Dead letters older than an id, newest first. Those that come meanwhile are not among them."""
    pages = pages_of(queue, before)
    looked_at = 0
    while not pages.over and looked_at < LOOKED_AT_MAX:
        page = await pages.next()
        for letter in page:
            yield letter
        looked_at += len(page)


async def list_letters(queue: QueueStore, before: str | None, limit: int, choice: Choice) -> Listed:
    """Up to `limit` letters older than an id; fewer where they are long or hard to find."""
    found: list[DeadLetter] = []
    size = looked_at = 0
    last: str | None = None
    async for letter in walk(queue, before):
        if len(found) == limit or size > ANSWER_BYTES or looked_at == LISTED_FROM_MAX:
            return Listed(found, last)  # there is at least this one more
        looked_at += 1
        last = letter.id
        if choice.takes(letter):
            found.append(letter)
            size += size_of(letter)
    return Listed(found, None)


async def purge(queue: QueueStore, choice: Choice) -> int:
    """Forget the chosen ones; returns how many."""
    purged = 0
    doomed: list[str] = []
    async for letter in walk(queue):
        if choice.takes(letter):
            doomed.append(letter.id)
        if len(doomed) == PURGED_AT_ONCE:
            purged += await queue.purge(doomed)
            doomed = []
    return purged + await queue.purge(doomed)


def no_such_letter() -> Problem:
    """It never was, or was redriven, purged or trimmed."""
    return Problem(
        404,
        "dead_letter_not_found",
        "There is no such dead letter. It may have been purged, or redriven long ago.",
    )
