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


async def test_the_one_that_is_always_there(workflows: Workflows) -> None:
    [shipped] = await listed(workflows)
    assert shipped["name"] == memory_first.DEFINITION.name
    assert shipped["description"] == memory_first.DEFINITION.description
    by_name = {step["name"]: step for step in shipped["steps"]}
    assert list(by_name) == [step.name for step in memory_first.DEFINITION.steps]
    assert by_name["proposals"]["proposes"] is True
    review = by_name["review"]
    assert (review["kind"], review["reviews"]) == ("review", "proposals")
    assert by_name["sources"]["reviews"] is None
    assert by_name["sources"]["options_schema"]["properties"]["sources"]["type"] == "array"


async def test_those_that_workers_declare(workflows: Workflows) -> None:
    await workflows.declare()
    _, plain = await listed(workflows)
    assert plain["name"] == PLAIN.name
    assert [step["name"] for step in plain["steps"]] == ["fetch", "store"]
    assert plain["steps"][0]["options_schema"] == PLAIN.steps[0].options_schema
    assert plain["steps"][1]["options_schema"] is None


async def test_what_a_foreign_hand_declares_is_left_out(workflows: Workflows) -> None:
    await workflows.redis.hset(KEYS.definitions, "broken", "{")
    assert [each["name"] for each in await listed(workflows)] == [memory_first.DEFINITION.name]


async def test_what_was_known_is_told_while_redis_is_away(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fake_workflows.gateway.workflows.catalog
    await fake_workflows.declare()
    assert len(await listed(fake_workflows)) == 2
    known._refreshed_at = float("-inf")
    monkeypatch.setattr(known._client, "hgetall", _away)
    assert len(await listed(fake_workflows)) == 2


async def _away(*args: object) -> None:
    raise ConnectionError("away")


async def test_who_may_read_them(fake_make: Make) -> None:
    gateway: Gateway = fake_make(auth="required")
    reader = await key_for(gateway, scopes=("jobs:read",))
    writer = await key_for(gateway, scopes=("jobs:write",))
    answer: Answer = await call(gateway, "GET", PATH, reader)
    assert answer.status == 200
    check_envelope(await call(gateway, "GET", PATH, writer), 403, "insufficient_scope")
