"""Behaviour that all kinds of storage share."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from common.features.images.storage.base import Storage
from common.features.images.storage.directory import DirectoryStorage

KEY = "images/abc-123.webp"
TYPE = "image/webp"


async def content(storage: Storage, key: str = KEY) -> bytes | None:
    found = await storage.read(key)
    if found is None:
        return None
    data = b"".join([chunk async for chunk in found.chunks])
    assert len(data) == found.size_bytes
    return data


async def test_a_stored_object_can_be_read_replaced_and_deleted(storage: Storage) -> None:
    await storage.check()  # leaves no object
    assert await storage.read("images/check") is None
    assert await storage.read(KEY) is None
    await storage.delete(KEY)
    data = bytes(range(256)) * 4096  # more than one chunk
    stored = await storage.put(KEY, data, TYPE)
    assert stored == (hashlib.md5(data).hexdigest(), len(data))
    assert await content(storage) == data
    stored = await storage.put(KEY, b"second!", TYPE)
    assert stored == (hashlib.md5(b"second!").hexdigest(), 7)
    assert await content(storage) == b"second!"
    for _ in range(2):
        await storage.delete(KEY)
    assert await storage.read(KEY) is None


async def test_many_objects_at_once(storage: Storage) -> None:
    keys = [f"images/{number}.webp" for number in range(20)]
    await asyncio.gather(*(storage.put(key, key.encode(), TYPE) for key in keys))
    assert await asyncio.gather(*(content(storage, key) for key in keys)) == [
        key.encode() for key in keys
    ]


async def test_an_abandoned_reader_leaves_nothing_open(storage: Storage) -> None:
    await storage.put(KEY, bytes(2_000_000), TYPE)
    found = await storage.read(KEY)
    assert found is not None
    async for chunk in found.chunks:
        assert chunk
        break
    await found.chunks.aclose()  # type: ignore[attr-defined]
    assert [chunk async for chunk in found.chunks] == []


async def test_an_invalid_key_is_rejected(storage: Storage) -> None:
    invalid = ("", "/etc/passwd", "../x", "images/../../x", "images/.hidden", "images//x")
    invalid += ("images/x\0.webp", "images/", "./x", "x" * 513, "images/x y")
    for key in invalid:
        with pytest.raises(ValueError):
            await storage.put(key, b"x", TYPE)
        with pytest.raises(ValueError):
            await storage.read(key)
        with pytest.raises(ValueError):
            await storage.delete(key)


async def test_a_failed_check_prevents_replacement(storage: Storage) -> None:
    async def no() -> None:
        raise PermissionError("another one counts")

    with pytest.raises(PermissionError):
        await storage.put(KEY, b"never", TYPE, no)
    assert await storage.read(KEY) is None
    await storage.put(KEY, b"the one", TYPE)
    with pytest.raises(PermissionError):
        await storage.put(KEY, b"never", TYPE, no)
    assert await content(storage) == b"the one"
    if isinstance(storage, DirectoryStorage):
        assert [file.key for file in storage.files()] == [KEY]


@pytest.mark.parametrize("former", [b"", b"former"])
async def test_a_concurrent_change_is_checked_before_replacement(
    storage: Any, former: bytes
) -> None:
    if former:
        await storage.put(KEY, former, TYPE)
    asked = []

    async def may() -> None:
        asked.append(await content(storage))
        if len(asked) == 1:
            await storage.put(KEY, b"meanwhile", TYPE)

    async def at_once(seconds: float) -> None:
        pass

    storage._sleep = at_once
    stored = await storage.put(KEY, b"at last", TYPE, may)
    assert asked == [former or None, b"meanwhile"]
    assert await content(storage) == b"at last"
    assert stored.size_bytes == 7
