"""Bulk decisions on proposals: by id, by filter, all; also if some fail."""

from __future__ import annotations

import json
from typing import Any

from tests.gateway.access_kit import bearer, key_for
from tests.gateway.asgi import Answer
from tests.gateway.features.workflows.actions import items, reviewing, running, statuses, work_up_to
from tests.gateway.features.workflows.kit import PLAIN, Workflows, check_envelope

MISFITS: list[Any] = [
    {"action": "approve"},
    {"proposal_ids": [1]},
    {"action": "approve", "proposal_ids": []},
    {"action": "approve", "proposal_ids": [1], "all": True},
    {"action": "approve", "filter": {}, "all": True},
    {"action": "approve", "filter": {"min_confidence": 2}},
    {"action": "approve", "filter": {"status": "lost"}},
    {"action": "approve", "all": False},
    {"action": "approve", "all": 1},
    {"action": "apply", "all": True},
    {"action": "approve", "all": True, "versions": {"p_001": 1}},
    {"action": "approve", "proposal_ids": [1], "versions": {"p_002": 1}},
    {"action": "approve", "proposal_ids": [1], "versions": {"p_001": 0}},
    {"action": "approve", "proposal_ids": [True]},
    {"action": "approve", "proposal_ids": [1.5]},
    {"action": "approve", "proposal_ids": [1], "note": "x" * 2001},
    {"action": "approve", "proposal_ids": [1], "more": 1},
    [],
    "approve",
]


async def bulk(workflows: Workflows, job_id: str, body: object, **headers: str) -> Answer:
    return await workflows.post(f"/{job_id}/proposals/bulk", body, **headers)


async def test_named_proposals_are_approved(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await bulk(workflows, job_id, {"action": "approve", "proposal_ids": ["p_001", 3, "3"]})
    body = answer.json()
    assert answer.status == 200
    assert list(body)[:8] == [
        *("success", "job_id", "step", "applied", "failed", "items", "errors", "undo_token")
    ]
    assert (body["success"], body["step"]) == (True, "proposals")
    assert (body["applied"], body["failed"], body["errors"]) == (2, 0, [])
    assert [(item["id"], item["status"], item["version"]) for item in body["items"]] == [
        ("p_001", "approved", 2),
        ("p_003", "approved", 2),
    ]
    assert (body["pending"], body["completed"]) == (1, False)
    found = await workflows.read(f"/{job_id}/results?step=proposals")
    assert found["result"]["bulk"] == {"supported": True, "last_operation": "approve_selected"}
    assert found["result"]["ontology_edits"]["pending_changes"] == 2


async def test_filtered_proposals_are_approved(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)  # of confidence 0.001, 0.002, 0.003
    await bulk(workflows, job_id, {"action": "reject", "proposal_ids": [3]})
    decision = {"action": "approve", "filter": {"status": "proposed", "min_confidence": 0.002}}
    answer = await bulk(workflows, job_id, decision)
    assert [item["id"] for item in answer.json()["items"]] == ["p_002"]
    assert await statuses(workflows, job_id) == ["proposed", "approved", "rejected"]
    found = await workflows.read(f"/{job_id}/results?step=proposals")
    assert found["result"]["bulk"]["last_operation"] == "approve_filtered"


async def test_all_proposals_are_reset_and_approved(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    body = {"action": "reset", "all": True}
    await bulk(workflows, job_id, {"action": "reject", "proposal_ids": [1, 2]})
    assert (await bulk(workflows, job_id, body)).json()["success"] is True
    assert await statuses(workflows, job_id) == ["proposed"] * 3
    answer = await bulk(workflows, job_id, {"action": "approve", "all": True})
    assert answer.json()["completed"] is True
    assert (await workflows.status(job_id))["status"] == "running"


async def test_the_last_decision_starts_the_next_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"auto_advance": True})
    await work_up_to(workflows, job_id, "proposals")
    answer = await bulk(workflows, job_id, {"action": "approve", "all": True})
    what = await running(workflows, job_id)
    assert answer.json()["started"] == {"step": "apply", "execution_id": what.execution}


async def test_some_decisions_fail(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    await bulk(workflows, job_id, {"action": "reject", "proposal_ids": [1]})
    answer = await bulk(
        workflows,
        job_id,
        {
            "action": "approve",
            "proposal_ids": ["p_001", "p_002", "p_404"],
            "versions": {"p_001": 1, "2": 1},
        },
    )
    body = answer.json()
    assert (answer.status, body["success"], body["applied"], body["failed"]) == (200, False, 1, 2)
    assert [item["id"] for item in body["items"]] == ["p_002"]
    assert [(error["item_id"], error["code"]) for error in body["errors"]] == [
        ("p_001", "version_conflict"),
        ("p_404", "item_not_found"),
    ]
    assert body["errors"][0]["version"] == 2


async def test_only_version_conflicts_get_409(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    await bulk(workflows, job_id, {"action": "reject", "proposal_ids": [1]})
    answer = await bulk(
        workflows, job_id, {"action": "approve", "proposal_ids": [1], "versions": {"p_001": 1}}
    )
    body = answer.json()
    assert (answer.status, body["success"], body["detail"]) == (
        409,
        False,
        body["errors"][0]["message"],
    )
    assert body["errors"][0]["code"] == "version_conflict"
    assert [(item["id"], item["version"]) for item in body["items"]] == [("p_001", 2)]


async def test_decisions_need_reviewable_proposals(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    body = {"action": "approve", "all": True}
    check_envelope(await bulk(workflows, job_id, body), 409, "not_reviewable")
    await workflows.until_proposals(job_id, 2)
    assert (await bulk(workflows, job_id, body)).status == 200  # the review is not open yet
    await workflows.post(f"/{job_id}/cancel")
    check_envelope(await bulk(workflows, job_id, body), 409, "not_reviewable")


async def test_a_workflow_without_proposals_is_not_reviewable(fake_workflows: Workflows) -> None:
    await fake_workflows.declare()
    job_id = await fake_workflows.create_job({"workflow": PLAIN.name})
    answer = await bulk(fake_workflows, job_id, {"action": "approve", "all": True})
    check_envelope(answer, 409, "not_reviewable")


async def test_invalid_requests_are_rejected(fake_workflows: Workflows) -> None:
    job_id = await reviewing(fake_workflows)
    for body in MISFITS:
        check_envelope(await bulk(fake_workflows, job_id, body), 422, "validation_error")
    assert await statuses(fake_workflows, job_id) == ["proposed"] * 3


async def test_malformed_json_is_rejected(fake_workflows: Workflows) -> None:
    job_id = await reviewing(fake_workflows)
    check_envelope(await bulk(fake_workflows, job_id, b"{"), 400, "invalid_json")
    check_envelope(await bulk(fake_workflows, job_id, b""), 400, "invalid_json")


async def test_the_key_and_the_note_are_recorded(workflows: Workflows) -> None:
    key = await key_for(workflows.gateway, "k", scopes=("jobs:read", "jobs:write"), tenant="a")
    job_id = await workflows.create_job(None, **bearer(key))
    await workflows.until_proposals(job_id, 2)
    body = {"action": "approve", "all": True, "note": "fine"}
    assert (await bulk(workflows, job_id, body, **bearer(key))).status == 200
    found = await workflows.get(f"/{job_id}/results?step=review", **bearer(key))
    [audit] = found.json()["result"]["items"]
    assert audit["payload"]["who"] == key.split("_")[1]
    assert audit["payload"]["note"] == "fine"
    assert list(await items(workflows, job_id))[:1] == ["p_001"]


async def test_a_note_for_many_proposals_is_stored_once(workflows: Workflows) -> None:
    job_id = await reviewing(workflows, 50)
    body = {"action": "approve", "proposal_ids": list(range(1, 50)), "note": "n" * 2000}
    assert (await bulk(workflows, job_id, body)).status == 200
    found = await workflows.read(f"/{job_id}/results?step=review")
    [audit] = found["result"]["items"]
    assert audit["payload"]["note"] == "n" * 2000
    assert len(json.dumps(audit)) < 8000
