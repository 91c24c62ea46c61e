"""Dead letters page by page, newest first: of one queue, or of all partitions merged."""

from __future__ import annotations

from typing import Final

from common import letter_ids
from common.letter_ids import LetterName
from common.merging import Merged, Pages
from common.partition_queue import PartitionedQueue
from common.queue import DeadLetter, QueueStore

#: Letters read at once, each with its payload: of a partition at most, and fewer where they come
#: to more than so many bytes.
PAGE: Final = 32
BYTES_AT_ONCE: Final = 1 << 20
_NEWEST: Final = "+"
#: Nothing is older, and Redis does not even want to be asked.
_OLDEST: Final = "0-0"


def pages_of(queue: QueueStore, before: str | None) -> Pages[DeadLetter]:
    """Letters older than an id, None for all of them."""
    if not isinstance(queue, PartitionedQueue):
        return _OneQueue(queue, before)
    count = len(queue.each)
    start = None if before is None else letter_ids.parse(before, count)
    sources = [_OnePartition(queue, number, start) for number in range(count)]
    return Merged(sources, queue.place_of)


def size_of(letter: DeadLetter) -> int:
    """About how many bytes it is."""
    return len(letter.fields) + len(letter.first_error) + len(letter.last_error)


class _OneQueue:
    """The only queue there is."""

    def __init__(self, queue: QueueStore, before: str | None) -> None:
        self._queue = queue
        self._before = before or _NEWEST
        self.over = before == _OLDEST

    async def next(self) -> list[DeadLetter]:
        page = await self._queue.dead_letters(self._before, PAGE)
        self.over = len(page) < PAGE
        if page:
            self._before = page[-1].id
        return page


class _OnePartition:
    """One of many: it begins with a few, since a page of each is held at once."""

    def __init__(self, queue: PartitionedQueue, number: int, before: LetterName | None) -> None:
        self._queue = queue
        self._number = number
        self._before = before
        self._most = max(1, PAGE // len(queue.each))
        self.over = False

    async def next(self) -> list[DeadLetter]:
        page = await self._queue.letters_of(self._number, self._before, self._most)
        self.over = len(page) < self._most
        if page:
            self._before = self._queue.place_of(page[-1])
        if sum(map(size_of, page)) * len(self._queue.each) > BYTES_AT_ONCE:
            self._most = max(1, self._most // 2)
        else:
            self._most = min(PAGE, self._most * 2)
        return page
