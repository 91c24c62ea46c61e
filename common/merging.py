"""Several sources in descending order as one, a page at a time, read no further than is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

Item = TypeVar("Item")


class Pages(Protocol[Item]):
    """Items in descending order, page after page."""

    over: bool

    async def next(self) -> list[Item]:
        """The next page; it may be empty although it is not over."""
        ...


class Merged(Generic[Item]):
    """All of them in one order. Of each source one page is held at most."""

    def __init__(self, sources: Sequence[Pages[Item]], key: Callable[[Item], Any]) -> None:
        self._sources = sources
        self._key = key
        self._held: list[list[Item]] = [[] for _ in sources]
        self.over = not sources
        #: Where it has got to.
        self.last: Item | None = None

    async def next(self) -> list[Item]:
        """All that nothing which is still to be read can come before."""
        while empty := [at for at, source in enumerate(self._sources) if self._wants(at, source)]:
            pages = await asyncio.gather(*(self._sources[at].next() for at in empty))
            for at, page in zip(empty, pages):
                self._held[at] = page
        key = self._key
        reached = [
            key(held[-1]) for held, source in zip(self._held, self._sources) if not source.over
        ]
        least = max(reached, default=None)
        found: list[Item] = []
        for at, held in enumerate(self._held):
            ripe = held if least is None else [item for item in held if key(item) >= least]
            self._held[at] = held[len(ripe) :]
            found += ripe
        found.sort(key=key, reverse=True)
        self.over = not any(self._held) and all(source.over for source in self._sources)
        if found:
            self.last = found[-1]
        return found

    def _wants(self, at: int, source: Pages[Item]) -> bool:
        return not self._held[at] and not source.over
