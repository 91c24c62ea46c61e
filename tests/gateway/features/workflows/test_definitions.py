"""The list of workflows over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from common.features.workflows import memory_first
from tests.gateway.access_kit import call, key_for
from tests.gateway.asgi import Answer
from tests.gateway.conftest import Gateway, Make
from tests.gateway.features.workflows.kit import KEYS, PLAIN, Workflows, check_envelope

PATH = "/api/workflow/definitions"


async def listed(workflows: Workflows) -> list[Any]:
    answer = await workflows.gateway.client.get(PATH, {})
    assert answer.status == 200, answer
    assert answer.json()["success"] is True
    found: list[Any] = answer.json()["workflows"]
    return found


async def test_the_built_in_workflow_is_listed(workflows: Workflows) -> None:
    [built_in] = await listed(workflows)
    assert built_in["name"] == memory_first.DEFINITION.name
    assert built_in["description"] == memory_first.DEFINITION.description
    by_name = {step["name"]: step for step in built_in["steps"]}
    assert list(by_name) == [step.name for step in memory_first.DEFINITION.steps]
    assert by_name["proposals"]["proposes"] is True
    review = by_name["review"]
    assert (review["kind"], review["reviews"]) == ("review", "proposals")
    assert by_name["sources"]["reviews"] is None
    assert by_name["sources"]["options_schema"]["properties"]["sources"]["type"] == "array"


async def test_workflows_declared_by_workers_are_listed(workflows: Workflows) -> None:
    await workflows.declare()
    _, plain = await listed(workflows)
    assert plain["name"] == PLAIN.name
    assert [step["name"] for step in plain["steps"]] == ["fetch", "store"]
    assert plain["steps"][0]["options_schema"] == PLAIN.steps[0].options_schema
    assert plain["steps"][1]["options_schema"] is None


async def test_invalid_declarations_are_left_out(workflows: Workflows) -> None:
    await workflows.redis.hset(KEYS.definitions, "broken", "{")
    assert [each["name"] for each in await listed(workflows)] == [memory_first.DEFINITION.name]


async def test_the_cached_list_is_served_without_redis(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = fake_workflows.gateway.workflows.catalog
    await fake_workflows.declare()
    assert len(await listed(fake_workflows)) == 2
    catalog._refreshed_at = float("-inf")
    monkeypatch.setattr(catalog._client, "hgetall", _away)
    assert len(await listed(fake_workflows)) == 2


async def _away(*args: object) -> None:
    raise ConnectionError("away")


async def test_reading_requires_the_read_scope(fake_make: Make) -> None:
    gateway: Gateway = fake_make(auth="required")
    reader = await key_for(gateway, scopes=("jobs:read",))
    writer = await key_for(gateway, scopes=("jobs:write",))
    answer: Answer = await call(gateway, "GET", PATH, reader)
    assert answer.status == 200
    check_envelope(await call(gateway, "GET", PATH, writer), 403, "insufficient_scope")
