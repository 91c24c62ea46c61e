"""Decisions on proposals: through the review step, in bulk, or by an edit of one proposal."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice.common.features.workflows.types import NewItem
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Answer
from tests.support.gateway.workflows import PLAIN, Workflows, check_envelope, execute_path, things
from tests.support.worker.harness import eventually

pytestmark = pytest.mark.fakeredis_only


async def decide(workflows: Workflows, job_id: str, *decisions: dict[str, Any], **more: Any) -> Any:
    """Send decisions to the review step; returns the response."""
    payload = {"decisions": list(decisions), **more}
    return await workflows.execute(job_id, "review", {"payload": payload})


def approve(item: str | int, **more: Any) -> dict[str, Any]:
    return {"id": item, "action": "approve", **more}


def reject(item: str | int, **more: Any) -> dict[str, Any]:
    return {"id": item, "action": "reject", **more}


async def test_a_review_waits_for_decisions(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 3)
    answer = await workflows.execute(job_id, "review")
    body = answer.json()
    assert answer.status == 202
    assert answer.header("location") == f"/api/workflow/jobs/{job_id}/status"
    assert body["result"]["summary"] == "Step 'review' waits for decisions on 3 items"
    assert body["execution_id"].startswith("ex_")
    job = await workflows.status(job_id)
    assert (job["status"], job["current_step"]) == ("waiting_input", "review")
    again = await workflows.execute(job_id, "review")
    assert (again.status, again.json()["execution_id"]) == (202, body["execution_id"])
    empty = await workflows.create_job()
    await workflows.until_proposals(empty, 0)
    answer = await workflows.execute(empty, "review")
    assert (answer.status, answer.json()["result"]["summary"]) == (200, "Nothing to decide")


async def test_the_last_decision_completes_the_review(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    answer = await decide(workflows, job_id, approve("p_001"), reject(2, note="no"))
    body = answer.json()
    assert (answer.status, body["success"]) == (202, True)
    assert (body["applied"], body["failed"], body["pending"]) == (2, 0, 1)
    assert body["undo_token"].startswith("undo_")
    assert await workflows.statuses(job_id) == ["approved", "rejected", "proposed"]

    answer = await decide(workflows, job_id, approve(3))
    body = answer.json()
    assert (answer.status, body["success"], body["completed"]) == (200, True, True)
    assert body["result"]["summary"] == "2 approved, 1 rejected"
    assert {item["type"] for item in body["result"]["items"]} == {"review"}
    job = await workflows.status(job_id)
    assert (job["status"], job["progress"]) == ("running", 0.85)


async def test_a_waiting_request_ends_at_the_review(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = workflows.begin(execute_path(job_id, "review"), {"wait_s": 30})
    await eventually(lambda: workflows.gateway.hub._topics)
    await workflows.work_up_to(job_id, "proposals")
    answer = await request.answer()
    assert answer.status == 202
    assert (await workflows.status(job_id))["status"] == "waiting_input"


async def test_some_decisions_fail(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    failing = (approve(1, version=7), approve("p_009"), approve("s_001"), approve(2, version=1))
    answer = await decide(workflows, job_id, *failing)
    body = answer.json()
    assert (answer.status, body["success"], body["applied"], body["failed"]) == (202, False, 1, 3)
    reported = {error["item_id"]: error["code"] for error in body["errors"]}
    missing = dict.fromkeys(("p_009", "s_001"), "item_not_found")
    assert reported == {"p_001": "version_conflict", **missing}
    [conflict] = [error for error in body["errors"] if error["item_id"] == "p_001"]
    assert (conflict["version"], conflict["status"]) == (1, "proposed")
    answer = await decide(workflows, job_id, approve(1, version=7), finalize=True)
    body = answer.json()
    assert (answer.status, body["success"], body["step"]) == (409, False, "review")
    assert body["detail"] == body["errors"][0]["message"]
    assert [(item["id"], item["version"]) for item in body["items"]] == [("p_001", 1)]
    assert await workflows.statuses(job_id) == ["proposed", "approved", "proposed"]
    answer = await decide(workflows, job_id, finalize=True)
    assert (answer.status, answer.json()["applied"]) == (200, 2)


MISFITS: list[tuple[Any, str]] = [
    ({"decisions": [{"id": 1}]}, "decisions[0].action"),
    ({"decisions": [{"id": 0, "action": "approve"}]}, "decisions[0].id"),
    ({"decisions": [{"id": 1, "action": "burn"}]}, "decisions[0].action"),
    ({"decisions": [approve(1), approve("p_001")]}, "decisions[1].id"),
    ({"decisions": [approve(1, version=0)]}, "decisions[0].version"),
    ({"decisions": [approve(1)] * 2001}, "decisions"),
    ({"decisions": [approve(n, note="é" * 1000) for n in range(1, 18)]}, "decisions"),
    ({"finalize": 1}, "finalize"),
    ({"unheard_of": 1}, "unheard_of"),
]


async def test_invalid_decisions_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    for payload, field in MISFITS:
        answer = await workflows.execute(job_id, "review", {"payload": payload})
        envelope = check_envelope(answer, 422, "validation_error")
        assert envelope["errors"][0]["field"].startswith(f"payload.{field}")
    for body in INVALID_BULK:
        check_envelope(await bulk(workflows, job_id, body), 422, "validation_error")
    for raw in (b"{", b""):
        check_envelope(await bulk(workflows, job_id, raw), 400, "invalid_json")
    assert await workflows.statuses(job_id) == ["proposed"] * 3


INVALID_BULK: list[Any] = [
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


async def test_named_and_filtered_proposals_are_approved(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"auto_advance": True})
    await workflows.work_up_to(job_id, "proposals", 4)  # of confidence 0.001 to 0.004
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
    assert (body["pending"], body["completed"]) == (2, False)
    found = await workflows.read(f"/{job_id}/results?step=proposals")
    assert found["result"]["bulk"] == {"supported": True, "last_operation": "approve_selected"}
    assert found["result"]["ontology_edits"]["pending_changes"] == 2
    decision = {"action": "approve", "filter": {"status": "proposed", "min_confidence": 0.003}}
    [item] = (await bulk(workflows, job_id, decision)).json()["items"]
    assert item["id"] == "p_004"
    found = await workflows.read(f"/{job_id}/results?step=proposals")
    assert found["result"]["bulk"]["last_operation"] == "approve_filtered"
    body = (await bulk(workflows, job_id, {"action": "reject", "all": True})).json()
    assert (body["completed"], body["pending"]) == (True, 0)
    what = await workflows.running(job_id)
    assert body["started"] == {"step": "apply", "execution_id": what.execution}


async def test_some_bulk_decisions_fail(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    await bulk(workflows, job_id, {"action": "reject", "proposal_ids": [1]})
    stale = {"action": "approve", "proposal_ids": [1], "versions": {"p_001": 1}}
    answer = await bulk(workflows, job_id, stale)
    body = answer.json()
    assert (answer.status, body["success"]) == (409, False), "only version conflicts"
    assert body["detail"] == body["errors"][0]["message"]
    assert body["errors"][0]["code"] == "version_conflict"
    assert [(item["id"], item["version"]) for item in body["items"]] == [("p_001", 2)]
    several = {"proposal_ids": ["p_001", "p_002", "p_404"], "versions": {"p_001": 1, "2": 1}}
    answer = await bulk(workflows, job_id, {**stale, **several})
    body = answer.json()
    assert (answer.status, body["success"], body["applied"], body["failed"]) == (200, False, 1, 2)
    assert [item["id"] for item in body["items"]] == ["p_002"]
    assert [(error["item_id"], error["code"]) for error in body["errors"]] == [
        ("p_001", "version_conflict"),
        ("p_404", "item_not_found"),
    ]
    assert body["errors"][0]["version"] == 2


async def test_bulk_decisions_need_reviewable_proposals(workflows: Workflows) -> None:
    await workflows.declare()
    plain = await workflows.create_job({"workflow": PLAIN.name})
    job_id = await workflows.create_job()
    body = {"action": "approve", "all": True}
    for each in (job_id, plain):
        check_envelope(await bulk(workflows, each, body), 409, "not_reviewable")
    check_envelope(await decide(workflows, job_id, approve(1)), 409, "not_reviewable")
    await workflows.until_proposals(job_id, 2)
    assert (await bulk(workflows, job_id, body)).status == 200  # the review is not open yet
    await workflows.post(f"/{job_id}/cancel")
    check_envelope(await bulk(workflows, job_id, body), 409, "not_reviewable")


async def test_the_key_and_the_note_are_recorded_once(workflows: Workflows) -> None:
    key = await key_for(workflows.gateway, "k", scopes=("jobs:read", "jobs:write"), tenant="a")
    job_id = await workflows.create_job(None, **bearer(key))
    await workflows.until_proposals(job_id, 50)
    body = {"action": "approve", "proposal_ids": list(range(1, 50)), "note": "n" * 2000}
    assert (await bulk(workflows, job_id, body, **bearer(key))).status == 200
    found = await workflows.get(f"/{job_id}/results?step=review", **bearer(key))
    [audit] = found.json()["result"]["items"]
    assert audit["payload"]["who"] == key.split("_")[1]
    assert audit["payload"]["note"] == "n" * 2000
    assert len(json.dumps(audit)) < 8000


MOVE: dict[str, Any] = {"kind": "file_move", "from": "in/a.txt", "to": "notes/a.txt"}

MOVES: list[tuple[dict[str, Any], str]] = [
    ({"proposed_folder": "archive/2026"}, "archive/2026/a.txt"),
    ({"proposed_folder": "/archive/"}, "archive/a.txt"),
    ({"proposed_folder": ""}, "a.txt"),
    ({"proposed_filename": "b.txt"}, "notes/b.txt"),
    ({"proposed_folder": "x", "proposed_filename": "b.txt"}, "x/b.txt"),
]
NOWHERE: list[dict[str, Any]] = [
    *({"proposed_folder": folder} for folder in ("../out", "a/../../out")),
    *({"proposed_filename": name} for name in ("../b", "..", "a/b", "a\0b")),
    {"proposed_filename": "b", "to": "c"},
]
INVALID_EDITS: list[Any] = [
    *([], {}, {"version": 1}, {"idempotency_key": "k"}, {"kind": "term_add"}),
    *({"to": ""}, {"to": 3}, {"to": ["a", "b"]}, {"to": "x" * 4001}, {"to": None}, {"to": " \t\n"}),
    *({"confidence": 1.5}, {"confidence": "0.5"}, {"auto_approve": "no"}, {"from": "\u2003"}),
    *({"to": "x", "version": 0}, {"to": None, "version": 1, "idempotency_key": "k"}),
]


async def edit(
    workflows: Workflows, job_id: str, item: Any, body: object, **headers: str
) -> Answer:
    path = f"/{job_id}/proposals/{item}/ontology"
    return await workflows.send(path, body, method="PATCH", **headers)


async def with_proposal(workflows: Workflows, payload: dict[str, Any]) -> str:
    """A job with this one proposal."""
    job_id = await workflows.create_job()
    for step in ("sources", "index_extract", "summarize"):
        await workflows.run(job_id, step, things(1))
    item = NewItem(json.dumps(payload).encode(), "proposed", 0.5)
    await workflows.run(job_id, "proposals", [item])
    return job_id


async def test_an_edit_changes_and_approves_the_proposal(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    body = {"to": "dead letter queue", "confidence": 0.9, "rationale": "as written", "note": "n"}
    answer = await edit(workflows, job_id, "p_002", body)
    response = answer.json()
    assert (answer.status, answer.header("etag")) == (200, '"2"')
    assert (response["success"], response["job_id"]) == (True, job_id)
    assert response["step"] == "proposals"
    assert response["item"] == (await workflows.items(job_id))["p_002"]
    assert response["item"]["payload"] == {"from": "t2", **body}
    assert (response["item"]["status"], response["item"]["version"]) == ("approved", 2)
    assert response["item"]["undo_token"] == "undo_p_002"
    assert response["ontology_edits"] == {"supported": True, "granular": True, "pending_changes": 1}
    assert response["errors"] == []


async def test_an_edit_of_an_old_version_is_rejected(workflows: Workflows) -> None:
    job_id = await workflows.reviewing(5)

    async def on(item: int, by: str, version: int, to: str) -> Answer:
        if by == "body":
            return await edit(workflows, job_id, item, {"to": to, "version": version})
        return await edit(workflows, job_id, item, {"to": to}, if_match=by.format(version))

    for item, by in enumerate(("body", '"{}"', 'W/"{}"', "{}"), 1):
        assert (await on(item, by, 1, "first")).status == 200
        response = check_envelope(await on(item, by, 1, "second"), 409, "version_conflict")
        assert response["errors"][0]["item_id"] == f"p_00{item}"
        assert (response["item"]["version"], response["item"]["payload"]["to"]) == (2, "first")
        assert (await on(item, by, 2, "third")).json()["item"]["payload"]["to"] == "third"


async def test_concurrent_edits_are_all_kept(workflows: Workflows) -> None:
    """Without a version, each edit applies to the newest one."""
    job_id = await workflows.reviewing(2)
    changed = {"to": "t", "from": "f", "rationale": "r", "note": "n"}
    answers = await asyncio.gather(
        *(edit(workflows, job_id, 1, {name: value}) for name, value in changed.items())
    )
    assert [answer.status for answer in answers] == [200] * 4
    item = (await workflows.items(job_id))["p_001"]
    assert (item["payload"], item["version"]) == (changed, 5)


async def test_folder_and_filename_change_the_target(workflows: Workflows) -> None:
    job_id = await with_proposal(workflows, MOVE)
    before = (await workflows.items(job_id))["p_001"]
    for number, (body, to) in enumerate(MOVES):
        answer = await edit(workflows, job_id, 1, body)
        assert answer.json()["item"]["payload"] == {**MOVE, "to": to}
        token = answer.json()["undo_token"]
        await workflows.post(f"/{job_id}/undo", {"undo_token": token})
        undone = (await workflows.items(job_id))["p_001"]
        assert undone == {**before, "version": 3 + 2 * number}
    for body in NOWHERE:
        check_envelope(await edit(workflows, job_id, 1, body), 422, "validation_error")
    other = await workflows.reviewing()
    answer = await edit(workflows, other, 1, {"proposed_folder": "x"})
    check_envelope(answer, 422, "validation_error", "proposed_folder")


async def test_invalid_edits_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    for body in INVALID_EDITS:
        check_envelope(await edit(workflows, job_id, 1, body), 422, "validation_error")
    for header in ('"x"', "0", "-1", '"1", "2"'):
        answer = await edit(workflows, job_id, 1, {"to": "x"}, if_match=header)
        check_envelope(answer, 422, "validation_error", "if-match")
    body = {"to": "x", "version": 1}
    answer = await edit(workflows, job_id, 1, body, if_match='"2"')
    check_envelope(answer, 422, "validation_error", "version")
    for item in ("p_009", 9, "unknown", "s_001%2e"):
        check_envelope(await edit(workflows, job_id, item, {"to": "x"}), 404, "item_not_found")
    check_envelope(await edit(workflows, "wf_20200101_001", 1, {"to": "x"}), 404)
    check_envelope(await edit(workflows, job_id, "s_001", {"to": "x"}), 409, "not_reviewable")
    assert await workflows.statuses(job_id) == ["proposed"] * 3
    assert (await edit(workflows, job_id, 1, body, if_match="*")).status == 200


async def test_an_edited_item_may_not_exceed_its_limit(workflows: Workflows) -> None:
    job_id = await with_proposal(workflows, {"to": ["a"]})
    for variants, status in ((16, 200), (17, 422)):
        body = {"to": ["x" * 4000] * variants, "auto_approve": False}
        answer = await edit(workflows, job_id, 1, body)
        assert answer.status == status
    assert "65536 at most" in check_envelope(answer, 422, "validation_error")["detail"]
    item = (await workflows.items(job_id))["p_001"]
    assert (item["version"], item["status"]) == (2, "proposed"), "it was not approved"
    assert len(item["payload"]["to"]) == 16
