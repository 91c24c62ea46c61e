"""Pagination over sorted indexes, and merging of several sources in descending order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from redis.asyncio import Redis

from sluice.common import codec
from sluice.common.errors import CorruptKey
from sluice.common.jobs.store import read_reply

#: Later than any real time; a third party may have written `inf`.
_FAR_MS: Final = 1 << 52


class IndexCursor:
    """Reads a sorted set from newest to oldest, even if many entries have the same time."""

    def __init__(
        self, client: Redis, index: str, before: tuple[int, str] | None, page_size: int
    ) -> None:
        self._client = client
        self._index = index
        self._before = before
        self._page_size = page_size
        #: The time at which to continue, and how many entries of that time were read.
        self._at: str | float = "+inf" if before is None else before[0]
        self._seen = 0
        self.last = before
        self.exhausted = False

    async def next(self) -> list[tuple[int, str]]:
        """The next entries (time, id); fewer than a page at the end."""
        command: Any = self._client.zrevrangebyscore(
            self._index, self._at, "-inf", start=self._seen, num=self._page_size, withscores=True
        )
        reply = await read_reply(command)
        if reply is None:
            raise CorruptKey(f"{self._index} is not a job index")
        entries = [(int(max(0, min(ms, _FAR_MS))), codec.decode_text(name)) for name, ms in reply]
        self.exhausted = len(entries) < self._page_size
        if not entries:
            return []
        oldest = reply[-1][1]
        same = sum(1 for _, ms in reply if ms == oldest)
        self._seen = same + (self._seen if oldest == self._at else 0)
        self._at = oldest
        self.last = entries[-1]
        # Entries of the same time are sorted by id, descending.
        return [entry for entry in entries if self._before is None or entry < self._before]


Item = TypeVar("Item")


class PageSource(Protocol[Item]):
    """Items in descending order, page after page."""

    exhausted: bool

    async def next(self) -> list[Item]:
        """The next page; it may be empty before the end."""
        ...


class MergedPages(Generic[Item]):
    """Merges several sources into one order. It holds at most one page of each."""

    def __init__(self, sources: Sequence[PageSource[Item]], key: Callable[[Item], Any]) -> None:
        self._sources = sources
        self._key = key
        self._held: list[list[Item]] = [[] for _ in sources]
        self.exhausted = not sources
        #: The last item that was returned.
        self.last: Item | None = None

    async def next(self) -> list[Item]:
        """All items that no unread item can precede."""
        while empty := [
            at for at, source in enumerate(self._sources) if self._needs_page(at, source)
        ]:
            pages = await asyncio.gather(*(self._sources[at].next() for at in empty))
            for at, page in zip(empty, pages):
                self._held[at] = page
        key = self._key
        reached = [
            key(held[-1]) for held, source in zip(self._held, self._sources) if not source.exhausted
        ]
        least = max(reached, default=None)
        found: list[Item] = []
        for at, held in enumerate(self._held):
            ready = held if least is None else [item for item in held if key(item) >= least]
            self._held[at] = held[len(ready) :]
            found += ready
        found.sort(key=key, reverse=True)
        self.exhausted = not any(self._held) and all(source.exhausted for source in self._sources)
        if found:
            self.last = found[-1]
        return found

    def _needs_page(self, at: int, source: PageSource[Item]) -> bool:
        return not self._held[at] and not source.exhausted
