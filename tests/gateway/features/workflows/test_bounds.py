"""Requests that are too large are refused at once, with a short message."""

from __future__ import annotations

from typing import Any

import pytest

from common.features.workflows.definitions import StepDefinition, WorkflowDefinition
from gateway.features.workflows import create
from gateway.features.workflows.models.requests import MOST_MEMBERS
from gateway.http.problems import MOST_FAULTS
from tests.support.gateway.asgi import Answer
from tests.support.gateway.workflow_actions import execute, reviewing
from tests.support.gateway.workflows import Workflows, check_envelope

pytestmark = pytest.mark.fakeredis_only

MANY = {f"m{number}": "x" for number in range(5_000)}


async def test_too_many_members_are_one_error(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    bulk = f"/{job_id}/proposals/bulk"
    for path, body, field in (
        ("", MANY, None),
        ("", {"steps": MANY}, "steps"),
        ("", {"webhook": MANY}, "webhook"),
        ("", {"review": MANY}, "review"),
        (bulk, {"action": "approve", "proposal_ids": [1], "versions": MANY}, "versions"),
        (bulk, {"action": "approve", "filter": MANY}, "filter"),
    ):
        answer = await workflows.post(path, body)
        [error] = check_envelope(answer, 422, "validation_error")["errors"]
        assert error["field"] == field
        assert "5000" in error["message"]
    payload = {"decisions": [{"id": 1, "action": "approve", **MANY}]}
    answer = await execute(workflows, job_id, "review", {"payload": payload})
    [error] = check_envelope(answer, 422, "validation_error")["errors"]
    assert error["field"] == "payload.decisions[0]"
    name = "n" * 50_000
    versions = {"action": "approve", "proposal_ids": [1], "versions": {name: 1}}
    for path, body in (("", {name: 1}), ("", {"steps": {name: {}}}), (bulk, versions)):
        answer = await workflows.post(path, body)
        check_envelope(answer, 422)
        assert len(answer.body) < 1_000, "a long name is not echoed"


async def test_a_response_lists_a_limited_number_of_errors(workflows: Workflows) -> None:
    body = dict.fromkeys(list(MANY)[:MOST_MEMBERS], 1)
    envelope = check_envelope(await workflows.create(body), 422, "validation_error")
    assert len(envelope["errors"]) == MOST_FAULTS
    assert f"{MOST_MEMBERS - MOST_FAULTS} more errors" in envelope["detail"]
    core_answer = await workflows.gateway.client.post(MANY)
    assert (core_answer.status, len(core_answer.json()["errors"])) == (422, MOST_FAULTS)


async def test_invalid_proposal_numbers_are_rejected(workflows: Workflows) -> None:
    path = f"/{await reviewing(workflows)}/proposals/bulk"
    for name in ("9" * 64, "9" * 11, "\u0663" * 3):
        body: dict[str, Any] = {"action": "approve", "proposal_ids": [name]}
        envelope = (await workflows.post(path, body)).json()
        assert [error["code"] for error in envelope["errors"]] == ["item_not_found"]
    long = {**body, "versions": {"9" * 5_000: 1}}
    check_envelope(await workflows.post(path, long), 422, "validation_error")


# -- options and the schema of their step ----------------------------------------------------


async def with_options(workflows: Workflows, schema: dict[str, Any], options: object) -> Answer:
    """A job of a workflow whose only step has this schema."""
    name = f"bounded_v{abs(hash(str(schema)))}"
    step = StepDefinition("fetch", "f", "page", 1.0, options_schema=schema)
    await workflows.declare(WorkflowDefinition(name, (step,)))
    workflows.gateway.workflows.catalog._refreshed_at = float("-inf")
    return await workflows.create({"workflow": name, "steps": {"fetch": options}})


async def test_costly_schemas_check_a_limited_number_of_members(workflows: Workflows) -> None:
    for costly in (
        {"uniqueItems": True},
        {"items": {"type": "object", "patternProperties": {"^x": {}}}},
        {"items": {"anyOf": [{"type": "object"}, {"type": "null"}]}},
    ):
        schema = {"properties": {"pages": {"type": "array", **costly}}}
        for count, status in ((400, 200), (600, 422)):
            options = {"pages": [{} if "uniqueItems" not in costly else n for n in range(count)]}
            answer = await with_options(workflows, schema, options)
            assert answer.status == status, answer
        envelope = check_envelope(answer, 422, "validation_error", "steps.fetch")
        assert "more than 500 members" in envelope["detail"]
    cheap = {"properties": {"pages": {"type": "array"}}}
    assert (await with_options(workflows, cheap, {"pages": list(range(600))})).status == 200
    sources = [{"type": "text", "title": "t", "text": "x"}] * 200
    assert (await workflows.create({"sources": sources})).status == 200
    schema = {"description": "x" * (64 * 1024)}
    envelope = check_envelope(await with_options(workflows, schema, {}), 422, "validation_error")
    assert "65536 at most" in envelope["detail"]


async def test_an_invalid_schema_is_parsed_once(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[object] = []
    real = create.Schema

    def counted(schema: object) -> object:
        parsed.append(schema)
        return real(schema)

    monkeypatch.setattr(create, "Schema", counted)
    for _ in range(3):
        answer = await with_options(workflows, {"type": "no such type"}, {})
        check_envelope(answer, 422, "validation_error", "steps.fetch")
    assert len(parsed) == 1
