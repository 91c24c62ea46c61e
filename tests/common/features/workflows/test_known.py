"""WorkflowCatalog: the built-in workflow always, those of workers once they are read."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from common.contracts.jobs import JobKeys
from common.contracts.workflow.keys import WorkflowKeys
from common.contracts.workflow.statuses import MEMORY_FIRST
from common.errors import StoreUnavailable
from common.features.workflows import catalog, memory_first
from common.features.workflows.catalog import CACHE_TTL_S, MIN_REFRESH_S, WorkflowCatalog
from tests.common.features.workflows.kit import FIVE
from tests.support.backends import Backend


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def redis(backend: Backend) -> Redis:
    return backend.client()


@pytest.fixture
def key(keys: JobKeys) -> str:
    return WorkflowKeys(keys.tag).definitions


@pytest.fixture
def workflows(redis: Redis, keys: JobKeys, clock: Clock) -> WorkflowCatalog:
    return WorkflowCatalog(redis, WorkflowKeys(keys.tag), clock=clock)


async def test_the_builtin_workflow_is_always_known(
    workflows: WorkflowCatalog, redis: Redis, key: str
) -> None:
    await redis.hset(key, MEMORY_FIRST, FIVE.to_json())
    assert await workflows.find(MEMORY_FIRST) is memory_first.DEFINITION
    assert workflows.names() == [MEMORY_FIRST]


async def test_an_unknown_name_is_looked_up_again_soon(
    workflows: WorkflowCatalog, redis: Redis, key: str, clock: Clock
) -> None:
    assert await workflows.find(FIVE.name) is None
    await redis.hset(key, FIVE.name, FIVE.to_json())
    assert await workflows.find(FIVE.name) is None, "it has just asked"
    clock.now += MIN_REFRESH_S
    assert await workflows.find(FIVE.name) == FIVE
    await redis.delete(key)
    assert await workflows.find(FIVE.name) == FIVE
    clock.now += CACHE_TTL_S
    assert await workflows.find(FIVE.name) is None


async def test_invalid_definitions_are_ignored(
    workflows: WorkflowCatalog, redis: Redis, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "MOST_BYTES", 100_000)
    long = FIVE.to_json()[:-1] + b',"x":"' + b"x" * 100_000 + b'"}'
    stored = {"a": b"", "b": b"[]", "c": b"{", "d": FIVE.to_json(), "five_v1": long, b"\xff": b"1"}
    await redis.hset(key, mapping=stored)
    assert await workflows.find(FIVE.name) is None
    assert workflows.names() == [MEMORY_FIRST]


async def test_a_key_of_the_wrong_type_is_ignored(
    workflows: WorkflowCatalog, redis: Redis, key: str
) -> None:
    await redis.set(key, "x")
    assert await workflows.find(FIVE.name) is None
    assert await workflows.find(MEMORY_FIRST) is not None


async def test_the_builtin_workflow_survives_a_redis_outage(
    workflows: WorkflowCatalog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(workflows, "_refresh", away)
    assert await workflows.find(MEMORY_FIRST) is memory_first.DEFINITION
    with pytest.raises(StoreUnavailable):
        await workflows.find("nope")
