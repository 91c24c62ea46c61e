"""Workflow definitions and their catalog."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.contracts.workflow.statuses import MEMORY_FIRST, StepKind
from sluice.common.errors import StoreUnavailable
from sluice.common.features.workflows import catalog, memory_first
from sluice.common.features.workflows.catalog import CACHE_TTL_S, MIN_REFRESH_S, WorkflowCatalog
from sluice.common.features.workflows.definitions import (
    MOST_STEPS,
    StepDefinition,
    WorkflowDefinition,
)
from sluice.common.features.workflows.memory_first import DEFINITION
from tests.support.servers import Backend
from tests.support.store.workflows import FIVE

ONE = StepDefinition("one", "o", "thing", 1.0)


def test_steps_are_found_by_name_and_by_item_id() -> None:
    assert WorkflowDefinition.from_json(DEFINITION.to_json()) == DEFINITION
    assert DEFINITION.step("summarize") is DEFINITION.steps[2]
    assert DEFINITION.step("nowhere") is None
    assert DEFINITION.step_of_item("sum_001") is DEFINITION.steps[2]
    assert DEFINITION.step_of_item("q_001") is None


HALF = replace(ONE, weight=0.5)


def steps(count: int) -> tuple[StepDefinition, ...]:
    weight = 1 / max(count, 1)
    return tuple(replace(ONE, name=f"s{n}", prefix=f"p{n}", weight=weight) for n in range(count))


#: Changes of a valid step, or all steps; and the complaint.
INVALID: list[tuple[dict[str, Any] | tuple[StepDefinition, ...], str]] = [
    ({"name": "No Name"}, "write its name"),
    ({"prefix": "p_"}, "is not valid as a prefix"),
    ({"weight": 2.0}, "weight must be"),
    ({"weight": 0.5}, "sum to 0.5"),
    ({"reviews": "one"}, "only a review"),
    ({"kind": StepKind.REVIEW, "reviews": "zero"}, "earlier step that proposes"),
    *(({"timeout_s": odd}, "timeout_s") for odd in (-1.0, "zz", float("inf"))),
    *(({"max_attempts": odd}, "max_attempts") for odd in (0, {"a": 1}, True)),
    ({"options_schema": [1]}, "options_schema"),
    *(((HALF, replace(HALF, **other)), "another step") for other in ({}, {"name": "two"})),
    ((HALF, replace(HALF, prefix="t")), "another step"),
    *((steps(count), "steps") for count in (0, MOST_STEPS + 1)),
]


@pytest.mark.parametrize(("odd", "words"), INVALID)
def test_invalid_steps_are_rejected(odd: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WorkflowDefinition("workflow", (replace(ONE, **odd),) if isinstance(odd, dict) else odd)


def test_an_invalid_name_or_json_is_rejected() -> None:
    for name in ("", "Flow", "1flow", "a" * 65, "fl ow"):
        with pytest.raises(ValueError, match="not a workflow name"):
            WorkflowDefinition(name, (ONE,))
    for raw in (b"", b"[]", b"{}", b'{"name":"x","steps":3}', b'{"name":"x"}'):
        with pytest.raises(ValueError):
            WorkflowDefinition.from_json(raw)
    stored = json.loads(DEFINITION.to_json())
    stored["steps"][0]["max_attempts"] = {"a": 1}
    with pytest.raises(ValueError, match="max_attempts"):
        WorkflowDefinition.from_json(json.dumps(stored).encode())


# -- WorkflowCatalog: the built-in workflow always, those of workers once they are read -----------


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


async def test_the_builtin_one_is_always_known(
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
    # So is a key of the wrong type.
    await redis.delete(key)
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
