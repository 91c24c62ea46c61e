"""Vector indexes in memory and in Redis: one conformance suite for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from sluice.worker.features.rag.vectors import base
from sluice.worker.features.rag.vectors import memory as numpy_vectors
from sluice.worker.features.rag.vectors import redis as vector_set
from sluice.worker.features.rag.vectors.base import VectorIndex, new_memory_index, pack_vectors
from sluice.worker.features.rag.vectors.memory import FIRST_ROWS, NumpyVectorIndex
from sluice.worker.features.rag.vectors.redis import BATCH_SIZE, RedisVectorIndex, has_vector_sets
from tests.support.servers import BUNDLED, REDIS_8, SYSTEM, Backend, RealServer

KEY = "rag:default:vset"
MEMORY, REDIS = "memory", "redis"


@pytest.fixture
async def eight(real_server: Callable[[str], RealServer]) -> AsyncIterator[Backend]:
    """An empty Redis with vector sets."""
    server = real_server(REDIS_8)
    server.client.flushall()
    backend = Backend(REDIS_8, server.url)
    yield backend
    await backend.close()


@pytest.fixture(params=[MEMORY, REDIS])
def vectors(request: Any) -> VectorIndex:
    if request.param == MEMORY:
        return new_memory_index()
    backend: Backend = request.getfixturevalue("eight")
    return RedisVectorIndex(backend.client(), KEY)


def some(seed: int, rows: int, dimensions: int = 16) -> list[list[float]]:
    """Unit vectors in random directions."""
    found = np.random.default_rng(seed).normal(size=(rows, dimensions))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).tolist()


def unit(seed: int, dimensions: int = 16) -> list[float]:
    return some(seed, 1, dimensions)[0]


def chunk_refs(found: Sequence[Any]) -> list[tuple[str, int]]:
    return [(near.document_id, near.chunk) for near in found]


async def test_the_nearest_come_first(vectors: VectorIndex) -> None:
    east, north, west, between = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.8, 0.6]
    assert await vectors.search(east, 5) == []
    assert await vectors.count() == 0
    assert await vectors.existing(["a"]) == set()
    await vectors.remove("a")
    await vectors.add("a", pack_vectors([]))
    assert await vectors.count() == 0
    await vectors.add("a", pack_vectors([east, north]))
    await vectors.add("b", pack_vectors([west, between]))
    found = await vectors.search(east, 10)
    assert chunk_refs(found) == [("a", 0), ("b", 1), ("a", 1), ("b", 0)]
    assert [near.score for near in found] == pytest.approx([1.0, 0.8, 0.0, -1.0], abs=0.02)
    assert chunk_refs(await vectors.search(east, 2)) == [("a", 0), ("b", 1)]
    assert await vectors.search(east, 0) == []


@pytest.mark.parametrize(
    "sizes", [(3, 5), (5, 3), (4, 4), (BATCH_SIZE + 9, 2), (2, BATCH_SIZE + 9), (3, 0)]
)
async def test_a_document_replaces_itself(vectors: VectorIndex, sizes: tuple[int, int]) -> None:
    old, new = some(1, sizes[0]), some(2, sizes[1])
    await vectors.add("other", pack_vectors(some(3, 2)))
    await vectors.add("doc", pack_vectors(old))
    await vectors.add("doc", pack_vectors(new))
    assert await vectors.count() == 2 + len(new)
    for number, row in enumerate(new):
        [best] = await vectors.search(row, 1)
        assert (best.document_id, best.chunk) == ("doc", number)
        assert best.score > 0.99
    found = await vectors.search(unit(9), 500)
    kept = {near.chunk for near in found if near.document_id == "doc"}
    assert kept == set(range(len(new)))
    existing = {"doc", "other"} if new else {"other"}
    assert await vectors.existing(["doc", "other", "none"]) == existing


async def test_a_removed_document_is_gone(vectors: VectorIndex) -> None:
    rows = some(4, BATCH_SIZE + 3)
    await vectors.add("doc", pack_vectors(rows))
    await vectors.add("other", pack_vectors(some(5, 1)))
    await vectors.remove("doc")
    assert await vectors.count() == 1
    assert chunk_refs(await vectors.search(rows[0], 10)) == [("other", 0)]
    assert await vectors.existing(["doc", "other"]) == {"other"}
    await vectors.remove("other")
    assert await vectors.count() == 0
    for name in ("a", "a.b_c-D@0123", "a:b:7", "ä ö", "x" * 200):  # any name of a document
        await vectors.add(name, pack_vectors(some(6, 2)))
        assert chunk_refs(await vectors.search(some(6, 2)[1], 1)) == [(name, 1)]
        await vectors.remove(name)


async def test_vectors_of_two_lengths_do_not_mix(vectors: VectorIndex) -> None:
    for rows, count in ((b"1234567", 1), (b"", 1), (b"12345678", 3)):
        with pytest.raises(base.DimensionMismatch):
            await vectors.add("a", base.PackedVectors(rows, count))
    assert await vectors.count() == 0
    await vectors.add("a", pack_vectors(some(1, 2, 16)))
    with pytest.raises(base.DimensionMismatch):
        await vectors.add("b", pack_vectors(some(1, 2, 8)))
    with pytest.raises(base.DimensionMismatch):
        await vectors.search(unit(1, 8), 3)
    assert await vectors.count() == 2
    assert await vectors.existing(["a", "b"]) == {"a"}
    # After clear, another length is accepted.
    await vectors.clear()
    await vectors.add("b", pack_vectors(some(1, 2, 8)))
    await vectors.remove("b")
    await vectors.add("c", pack_vectors(some(1, 2, 16)))
    assert await vectors.count() == 2


async def test_both_find_the_same(eight: Backend) -> None:
    """One is exact, the other approximate: of the ten nearest of 400 at most one differs."""
    memory, redis = new_memory_index(), RedisVectorIndex(eight.client(), KEY)
    for number in range(20):
        rows = pack_vectors(some(number, 20, 64))
        await memory.add(f"d{number}", rows)
        await redis.add(f"d{number}", rows)
    await memory.remove("d3")
    await redis.remove("d3")
    missed = 0
    for seed in range(100, 130):
        wanted = unit(seed, 64)
        exact, near = await memory.search(wanted, 10), await redis.search(wanted, 10)
        missed += len(set(chunk_refs(exact)) - set(chunk_refs(near)))
        scores = dict(zip(chunk_refs(exact), (each.score for each in exact)))
        for each in near:
            known = scores.get((each.document_id, each.chunk), each.score)
            assert each.score == pytest.approx(known, abs=0.02)
    assert missed <= 15  # of 300


#: Documents and their new number of vectors; None removes them.
STEPS = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 120)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 1000))
def test_the_index_contains_what_was_added_and_not_removed(
    steps: list[tuple[int, int | None]], seed: int
) -> None:
    async def run() -> None:
        vectors, there = NumpyVectorIndex(), dict[str, list[list[float]]]()
        for number, (document, size) in enumerate(steps):
            name, rows = f"d{document}", some(seed + number, size or 0, 4)
            packed = pack_vectors(rows)
            await (vectors.remove(name) if size is None else vectors.add(name, packed))
            there.pop(name, None)
            if rows:
                there[name] = rows
        total = sum(map(len, there.values()))
        assert await vectors.count() == total
        wanted = unit(seed, 4)
        scores = {
            (name, chunk): float(np.dot(row, wanted))
            for name, rows in there.items()
            for chunk, row in enumerate(rows)
        }
        found = await vectors.search(wanted, total + 5)
        scored = dict(zip(chunk_refs(found), (near.score for near in found)))
        assert scored == pytest.approx(scores, abs=1e-5)
        best = [near.score for near in await vectors.search(wanted, 3)]
        assert best == pytest.approx(sorted(scores.values(), reverse=True)[:3], abs=1e-5)

    asyncio.run(run())


async def test_removed_rows_are_compacted() -> None:
    vectors = NumpyVectorIndex()
    await vectors.add("kept", pack_vectors(some(1, 3)))
    for number in range(50):
        await vectors.add("doc", pack_vectors(some(number, 100)))
    assert await vectors.count() == 103
    assert len(vectors._rows) < 103 + 4 * FIRST_ROWS
    assert len(vectors._names) < 10
    assert chunk_refs(await vectors.search(some(1, 3)[2], 1)) == [("kept", 2)]
    # Equal scores keep their order.
    vectors = NumpyVectorIndex()
    for name in "abcdef":
        await vectors.add(name, pack_vectors([[1.0, 0.0]] * 2))
    found = chunk_refs(await vectors.search([1.0, 0.0], 4))
    assert sorted(found, key=lambda place: place[0]) == found
    assert chunk_refs(await vectors.search([1.0, 0.0], 12))[:3] == [("a", 0), ("a", 1), ("b", 0)]


async def test_a_large_search_in_a_thread_uses_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent changes affect only the next search."""
    monkeypatch.setattr(numpy_vectors, "THREAD_THRESHOLD", 0)
    vectors = NumpyVectorIndex()
    rows = some(1, 50)
    await vectors.add("doc", pack_vectors(rows))
    await vectors.add("other", pack_vectors(some(2, 50)))
    search = asyncio.ensure_future(vectors.search(rows[7], 1))
    await asyncio.sleep(0)
    await vectors.remove("doc")
    for number in range(20):
        await vectors.add("new", pack_vectors(some(number + 10, 300)))
    assert chunk_refs(await search) == [("doc", 7)]
    assert chunk_refs(await vectors.search(rows[7], 1)) != [("doc", 7)]


@pytest.mark.fakeredis_only
async def test_detection_of_vector_sets(
    backend: Backend, real_server: Callable[[str], RealServer], eight: Backend
) -> None:
    assert not await has_vector_sets(backend.client(), KEY)
    for name in (BUNDLED, SYSTEM):
        backend = Backend(name, real_server(name).url)
        version = (await backend.client().info("server"))["redis_version"]
        if int(version.partition(".")[0]) < 8:
            assert not await has_vector_sets(backend.client(), KEY)
        await backend.close()
    assert await has_vector_sets(eight.client(), KEY)
    assert await eight.client().dbsize() == 0


async def test_without_permission_vector_sets_are_not_used(
    eight: Backend, real_server: Callable[[str], RealServer]
) -> None:
    admin = real_server(REDIS_8).client
    for rules in ("~* +@all -vadd", "~* +@all -vrem", "~* +@all -vsim", "~* +@all -vsetattr",
                  "~other +@all", "~* -@all +ping"):  # fmt: skip
        admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", *rules.split())
        url = eight.url or ""
        limited = Backend(REDIS_8, url.replace("unix://", "unix://limited:x@"))
        try:
            assert not await has_vector_sets(limited.client(), KEY), rules
        finally:
            await limited.close()
            admin.execute_command("ACL", "DELUSER", "limited")
    # A key of the wrong type.
    client = eight.client()
    await client.set(KEY, "x")
    vectors = RedisVectorIndex(client, KEY)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await vectors.add("doc", pack_vectors(some(1, 2)))
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await vectors.search(some(1, 1)[0], 2)


async def test_an_interrupted_change_is_not_complete(eight: Backend, monkeypatch: Any) -> None:
    client = eight.client()
    vectors = RedisVectorIndex(client, KEY)
    await vectors.add("doc", pack_vectors(some(1, BATCH_SIZE + 10)))
    send, sent = vector_set._send, 0

    async def failing(redis: Any, commands: Any) -> list[Any]:
        nonlocal sent
        sent += 1
        return await send(redis, commands) if sent <= limit else [ResponseError("OOM no room")]

    # With any batch as the last one, the next change of the document completes it.
    for limit in range(1, 6):
        sent = 0
        monkeypatch.setattr(vector_set, "_send", failing)
        with pytest.raises(ResponseError, match="OOM"):
            await vectors.add("doc", pack_vectors(some(2, 2 * BATCH_SIZE + 5)))
        monkeypatch.setattr(vector_set, "_send", send)
        if limit > 1:
            assert await vectors.existing(["doc"]) == set()
        if limit % 2:
            await vectors.remove("doc")
            assert await vectors.count() == 0
        else:
            await vectors.add("doc", pack_vectors(some(3, 4)))
            assert (await vectors.count(), await vectors.existing(["doc"])) == (4, {"doc"})
