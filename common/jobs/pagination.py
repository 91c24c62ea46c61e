"""Several sources in descending order as one, a page at a time, read no further than is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from redis.asyncio import Redis

from common import codec
from common.errors import CorruptKey
from common.jobs.store import read_reply

#: Later than any time; a foreign hand may have written `inf`.
_FAR_MS: Final = 1 << 52


class IndexCursor:
    """Through a sorted set from a place on, towards the oldest, however many have one time."""

    def __init__(
        self, client: Redis, index: str, before: tuple[int, str] | None, look: int
    ) -> None:
        self._client = client
        self._index = index
        self._before = before
        self._page_size = look
        #: Where to go on: the time, and how many of that very time were seen.
        self._at: str | float = "+inf" if before is None else before[0]
        self._seen = 0
        self.last = before
        self.exhausted = False

    async def next(self) -> list[tuple[int, str]]:
        """The next entries, time and id of each; fewer than a look has where that is the end."""
        command: Any = self._client.zrevrangebyscore(
            self._index, self._at, "-inf", start=self._seen, num=self._page_size, withscores=True
        )
        reply = await read_reply(command)
        if reply is None:
            raise CorruptKey(f"{self._index} is none of ours")
        entries = [(int(max(0, min(ms, _FAR_MS))), codec.decode_text(name)) for name, ms in reply]
        self.exhausted = len(entries) < self._page_size
        if not entries:
            return []
        oldest = reply[-1][1]
        same = sum(1 for _, ms in reply if ms == oldest)
        self._seen = same + (self._seen if oldest == self._at else 0)
        self._at = oldest
        self.last = entries[-1]
        # Of the same time the index goes by id, backwards.
        return [entry for entry in entries if self._before is None or entry < self._before]


Item = TypeVar("Item")


class PageSource(Protocol[Item]):
    """Items in descending order, page after page."""

    exhausted: bool

    async def next(self) -> list[Item]:
        """The next page; it may be empty although it is not over."""
        ...


class MergedPages(Generic[Item]):
    """All of them in one order. Of each source one page is held at most."""

    def __init__(self, sources: Sequence[PageSource[Item]], key: Callable[[Item], Any]) -> None:
        self._sources = sources
        self._key = key
        self._held: list[list[Item]] = [[] for _ in sources]
        self.exhausted = not sources
        #: Where it has got to.
        self.last: Item | None = None

    async def next(self) -> list[Item]:
        """All that nothing which is still to be read can come before."""
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
            ripe = held if least is None else [item for item in held if key(item) >= least]
            self._held[at] = held[len(ripe) :]
            found += ripe
        found.sort(key=key, reverse=True)
        self.exhausted = not any(self._held) and all(source.exhausted for source in self._sources)
        if found:
            self.last = found[-1]
        return found

    def _needs_page(self, at: int, source: PageSource[Item]) -> bool:
        return not self._held[at] and not source.exhausted
