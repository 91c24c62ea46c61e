"""A walk through an index of ids by time, newest first, a look at a time."""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import Redis

from common import codec
from common.errors import CorruptKey
from common.store import read

#: Later than any time; a foreign hand may have written `inf`.
_FAR_MS: Final = 1 << 52


class IndexWalk:
    """Through a sorted set from a place on, towards the oldest, however many have one time."""

    def __init__(
        self, client: Redis, index: str, before: tuple[int, str] | None, look: int
    ) -> None:
        self._client = client
        self._index = index
        self._before = before
        self._look = look
        #: Where to go on: the time, and how many of that very time were seen.
        self._at: str | float = "+inf" if before is None else before[0]
        self._seen = 0
        self.last = before
        self.over = False

    async def next(self) -> list[tuple[int, str]]:
        """The next entries, time and id of each; fewer than a look has where that is the end."""
        command: Any = self._client.zrevrangebyscore(
            self._index, self._at, "-inf", start=self._seen, num=self._look, withscores=True
        )
        reply = await read(command)
        if reply is None:
            raise CorruptKey(f"{self._index} is none of ours")
        entries = [(int(max(0, min(ms, _FAR_MS))), codec.text(name)) for name, ms in reply]
        self.over = len(entries) < self._look
        if not entries:
            return []
        oldest = reply[-1][1]
        same = sum(1 for _, ms in reply if ms == oldest)
        self._seen = same + (self._seen if oldest == self._at else 0)
        self._at = oldest
        self.last = entries[-1]
        # Of the same time the index goes by id, backwards.
        return [entry for entry in entries if self._before is None or entry < self._before]
