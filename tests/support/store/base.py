"""What the harnesses of stores share: reads of whole databases."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from sluice.common.errors import CorruptKey
from sluice.common.redis.batching import ScriptBatcher


class RedisHarness:
    """A client, and checks of everything in its Redis."""

    client: Redis
    keys: Any
    batcher: ScriptBatcher

    async def close(self) -> None:
        await self.batcher.close()

    async def snapshot(self) -> dict[bytes, Any]:
        """Everything in Redis except TTLs: equal snapshots mean that nothing was written."""
        keys = sorted(await self.client.keys("*"))
        return dict(zip(keys, await self.contents(*keys)))

    async def contents(self, *keys: Any) -> list[Any]:
        kinds = self.client.pipeline(transaction=False)
        for key in keys:
            kinds.type(key)
        found = self.client.pipeline(transaction=False)
        for key, kind in zip(keys, await kinds.execute()):
            if kind == b"hash":
                found.hgetall(key)
            elif kind == b"stream":
                found.xrange(key)
            elif kind == b"set":
                found.smembers(key)
            elif kind == b"list":
                found.lrange(key, 0, -1)
            elif kind == b"zset":
                found.zrange(key, 0, -1, withscores=True)
            else:
                found.get(key)
        return await found.execute()

    @contextlib.asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """Fails if anything is written in its block, except TTLs."""
        before = await self.snapshot()
        yield
        after = await self.snapshot()
        changed = [key for key in {*before, *after} if before.get(key) != after.get(key)]
        assert not changed, {key: (before.get(key), after.get(key)) for key in changed}

    @contextlib.asynccontextmanager
    async def refuses(self, error: Any = CorruptKey, **options: Any) -> AsyncIterator[Any]:
        """Fails unless its block raises this error and writes nothing, except TTLs."""
        async with self.unchanged():
            with pytest.raises(error, **options) as caught:
                yield caught

    async def needs(
        self, keys: Sequence[str], call: Callable[[], Awaitable[Any]], spoil: str = "SADD"
    ) -> Any:
        """Check that a call fails, before it writes anything, if any of these keys has the wrong
        type; returns its outcome with all of them."""
        kept = f"{self.keys.tag}kept"
        for key in keys:
            existed = await self.client.exists(key)
            if existed:
                await self.client.rename(key, kept)
            await self.client.execute_command(spoil, key, "of another type")
            async with self.refuses():
                await call()
            await self.client.delete(key)
            if existed:
                await self.client.rename(kept, key)
        return await call()

    async def record(self, name: str) -> dict[str, str]:
        raise NotImplementedError

    async def has(self, name: str, **fields: str) -> None:
        """Check these fields of a record."""
        record = await self.record(name)
        assert {field: record.get(field) for field in fields} == fields

    @contextlib.asynccontextmanager
    async def out_of_memory(self) -> AsyncIterator[None]:
        """A real server refuses commands that need memory."""
        await self.client.config_set("maxmemory", "1")
        try:
            yield
        finally:
            await self.client.config_set("maxmemory", "0")


def texts(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in raw.items()}
