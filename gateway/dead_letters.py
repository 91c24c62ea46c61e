"""Walking through the dead letters: newest first, page by page, never further than is sane."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from common.contracts.jobs import DeadReason
from common.queue import DeadLetter, QueueStore
from gateway.problems import Problem

#: Letters read at once: each comes with its payload.
PAGE = 32
#: Letters that one request looks at, many times what our own workers leave there; and that one
#: answer is looked for among.
LOOKED_AT_MAX = 50_000
LISTED_FROM_MAX = 5_000
#: Bytes of letters in one answer, after which it ends early.
ANSWER_BYTES = 4 << 20
_NEWEST = "+"
#: Nothing is older, and Redis does not even want to be asked.
_OLDEST = "0-0"


class Listed(NamedTuple):
    """Some dead letters, and the id to go on from; None when there are no more."""

    letters: list[DeadLetter]
    next: str | None


async def walk(queue: QueueStore, before: str | None = None) -> AsyncIterator[DeadLetter]:
    """Dead letters older than an id, newest first. Those that come meanwhile are not among them."""
    start = before or _NEWEST
    looked_at = 0
    while start != _OLDEST and looked_at < LOOKED_AT_MAX:
        page = await queue.dead_letters(start, PAGE)
        for letter in page:
            yield letter
        if len(page) < PAGE:
            return
        looked_at += len(page)
        start = page[-1].id


async def list_letters(
    queue: QueueStore, before: str | None, limit: int, reason: DeadReason | None
) -> Listed:
    """Up to `limit` letters older than an id; fewer where they are long or hard to find."""
    found: list[DeadLetter] = []
    size = looked_at = 0
    last: str | None = None
    async for letter in walk(queue, before):
        if len(found) == limit or size > ANSWER_BYTES or looked_at == LISTED_FROM_MAX:
            return Listed(found, last)  # there is at least this one more
        looked_at += 1
        last = letter.id
        if is_for(letter, reason):
            found.append(letter)
            size += len(letter.fields) + len(letter.first_error) + len(letter.last_error)
    return Listed(found, None)


async def purge(queue: QueueStore, reason: DeadReason | None) -> int:
    """Forget those with a reason, or all of them; returns how many."""
    purged = 0
    doomed: list[str] = []
    async for letter in walk(queue):
        if is_for(letter, reason):
            doomed.append(letter.id)
        if len(doomed) == PAGE:
            purged += await queue.purge(doomed)
            doomed = []
    return purged + await queue.purge(doomed)


def is_for(letter: DeadLetter, reason: DeadReason | None) -> bool:
    """Whether the letter was put aside for this reason; None stands for any."""
    return reason is None or letter.reason == reason.value


def no_such_letter() -> Problem:
    """It never was, or was redriven, purged or trimmed."""
    return Problem(
        404,
        "dead_letter_not_found",
        "There is no such dead letter. It may have been purged, or redriven long ago.",
    )
