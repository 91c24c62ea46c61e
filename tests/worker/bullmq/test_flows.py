"""Flows: children run before their parent, and may fail it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import bullmq
import pytest

from tests.support.worker.bullmq import Bull
from worker.errors import JobError
from worker.execution.context import JobContext

pytestmark = pytest.mark.real_redis


@pytest.fixture
async def flow(bull: Bull) -> AsyncIterator[Any]:
    producer = bullmq.FlowProducer({"connection": bull.url})

    async def add(*children: dict[str, Any], **opts: Any) -> str:
        node = await producer.add(
            {
                "name": "parent",
                "queueName": bull.keys.queue,
                "data": {},
                "opts": opts,
                "children": [{"queueName": bull.keys.queue, **child} for child in children],
            }
        )
        return str(node["job"].id)

    yield add
    await producer.close()


def register(bull: Bull, order: list[str]) -> None:
    @bull.registry.named("parent")
    async def parent(context: JobContext, data: Any) -> Any:
        order.append("parent")
        return sorted((await context.children()).values())

    @bull.registry.named("child")
    async def child(context: JobContext, data: Any) -> Any:
        order.append("child")
        if data.get("fail"):
            raise JobError("the child failed")
        return data["n"]


async def test_children_run_first_and_the_parent_has_their_results(bull: Bull, flow: Any) -> None:
    order: list[str] = []
    register(bull, order)
    bull.work()
    parent = await flow(*({"name": "child", "data": {"n": n}} for n in (1, 2, 3)))
    [found] = await bull.ended(parent)
    assert json.loads(found["returnvalue"]) == [1, 2, 3]
    assert order == ["child", "child", "child", "parent"]


@pytest.mark.parametrize("option", ["failParentOnFailure", "ignoreDependencyOnFailure"])
async def test_a_failed_child_fails_its_parent_or_is_ignored(
    bull: Bull, flow: Any, option: str
) -> None:
    order: list[str] = []
    register(bull, order)
    bull.work()
    failing = {"name": "child", "data": {"fail": True}, "opts": {option: True}}
    parent = await flow(failing, {"name": "child", "data": {"n": 1}})
    [found] = await bull.ended(parent)
    if option == "failParentOnFailure":
        assert "failed" in found["failedReason"]
        assert "parent" not in order
        assert await bull.state(parent) == "failed"
    else:
        assert json.loads(found["returnvalue"]) == [1]


async def test_a_job_with_children_that_have_not_ended_cannot_complete(
    bull: Bull, flow: Any
) -> None:
    @bull.registry.named("parent")
    async def parent(context: JobContext, data: Any) -> str:
        await bull.redis.sadd(f"{bull.keys.job(context.job_id)}:dependencies", "some:child")
        return "done"

    consumer = bull.work()
    [found] = await bull.ended(await bull.add("parent", attempts=3))
    assert "children that have not ended" in found["failedReason"]
    assert consumer.counters.for_task("parent").failed == 1
