"""Reviews through the execute route of the review step."""

from __future__ import annotations

from typing import Any

from tests.gateway.features.workflows.actions import (
    begin,
    event_types,
    execute,
    execute_path,
    items,
    reviewing,
    running,
    statuses,
    work_up_to,
)
from tests.gateway.features.workflows.kit import Workflows, check_envelope
from tests.worker.kit import eventually


async def decide(workflows: Workflows, job_id: str, *decisions: dict[str, Any], **more: Any) -> Any:
    """Send decisions to the review step; returns the response."""
    payload = {"decisions": list(decisions), **more}
    return await execute(workflows, job_id, "review", {"payload": payload})


def approve(item: str | int, **more: Any) -> dict[str, Any]:
    return {"id": item, "action": "approve", **more}


def reject(item: str | int, **more: Any) -> dict[str, Any]:
    return {"id": item, "action": "reject", **more}


async def test_a_review_waits_for_decisions(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 3)
    answer = await execute(workflows, job_id, "review")
    body = answer.json()
    assert answer.status == 202
    assert answer.header("location") == f"/api/workflow/jobs/{job_id}/status"
    assert body["result"]["summary"] == "Step 'review' waits for decisions on 3 items"
    assert body["execution_id"].startswith("ex_")
    job = await workflows.status(job_id)
    assert (job["status"], job["current_step"]) == ("waiting_input", "review")
    again = await execute(workflows, job_id, "review")
    assert (again.status, again.json()["execution_id"]) == (202, body["execution_id"])


async def test_the_last_decision_completes_the_review(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await decide(workflows, job_id, approve("p_001"), reject(2, note="no"))
    body = answer.json()
    assert (answer.status, body["success"]) == (202, True)
    assert (body["applied"], body["failed"], body["pending"]) == (2, 0, 1)
    assert body["undo_token"].startswith("undo_")
    assert await statuses(workflows, job_id) == ["approved", "rejected", "proposed"]

    answer = await decide(workflows, job_id, approve(3))
    body = answer.json()
    assert (answer.status, body["success"], body["completed"]) == (200, True, True)
    assert body["result"]["summary"] == "2 approved, 1 rejected"
    assert {item["type"] for item in body["result"]["items"]} == {"review"}
    job = await workflows.status(job_id)
    assert (job["status"], job["progress"]) == ("running", 0.85)


async def test_finalize_rejects_the_rest(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await decide(workflows, job_id, approve(1), finalize=True)
    assert (answer.status, answer.json()["applied"]) == (200, 3)
    assert await statuses(workflows, job_id) == ["approved", "rejected", "rejected"]


async def test_auto_advance_starts_the_next_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job({"auto_advance": True})
    await work_up_to(workflows, job_id, "proposals")
    answer = await decide(workflows, job_id, finalize=True)
    what = await running(workflows, job_id)
    assert what.step == "apply"
    started = answer.json()["started"]
    assert started == {"step": "apply", "execution_id": what.execution}


async def test_without_proposals_the_review_is_complete(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 0)
    answer = await execute(workflows, job_id, "review")
    assert (answer.status, answer.json()["result"]["summary"]) == (200, "Nothing to decide")


async def test_decisions_open_and_complete_the_review(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 2)
    answer = await decide(workflows, job_id, approve(1), approve(2))
    assert answer.status == 200
    assert (await event_types(workflows, job_id)).count("step.completed") == 5


async def test_a_waiting_request_ends_at_the_review(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "review"), {"wait_s": 30})
    await eventually(lambda: workflows.gateway.hub._topics)
    await work_up_to(workflows, job_id, "proposals")
    answer = await request.answer()
    assert answer.status == 202
    assert (await workflows.status(job_id))["status"] == "waiting_input"


async def test_some_decisions_fail(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await decide(
        workflows,
        job_id,
        approve(1, version=7),
        approve("p_009"),
        approve("s_001"),
        approve(2, version=1),
    )
    body = answer.json()
    assert (answer.status, body["success"], body["applied"], body["failed"]) == (202, False, 1, 3)
    reported = {error["item_id"]: error["code"] for error in body["errors"]}
    assert reported == {
        "p_001": "version_conflict",
        "p_009": "item_not_found",
        "s_001": "item_not_found",
    }
    [conflict] = [error for error in body["errors"] if error["item_id"] == "p_001"]
    assert (conflict["version"], conflict["status"]) == (1, "proposed")
    assert await statuses(workflows, job_id) == ["proposed", "approved", "proposed"]


async def test_only_version_conflicts_get_409(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    await decide(workflows, job_id, reject(1))
    answer = await decide(workflows, job_id, approve(1, version=1), finalize=True)
    body = answer.json()
    assert (answer.status, body["success"], body["step"]) == (409, False, "review")
    assert body["detail"] == body["errors"][0]["message"]
    assert [error["code"] for error in body["errors"]] == ["version_conflict"]
    assert [(item["id"], item["version"]) for item in body["items"]] == [("p_001", 2)]
    assert await statuses(workflows, job_id) == ["rejected", "proposed", "proposed"]


async def test_failed_decisions_are_not_finalized(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await decide(workflows, job_id, approve("p_009"), finalize=True)
    assert (answer.status, answer.json()["success"]) == (202, False)
    assert await statuses(workflows, job_id) == ["proposed"] * 3


async def test_decisions_need_reviewable_proposals(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    check_envelope(await decide(workflows, job_id, approve(1)), 409, "not_reviewable")
    await workflows.post(f"/{job_id}/cancel")
    check_envelope(await decide(workflows, job_id, approve(1)), 409, "not_reviewable")


async def test_decisions_are_recorded(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    await decide(workflows, job_id, approve(1, note="fits"), reject(2))
    found = await workflows.read(f"/{job_id}/results?step=review")
    [audit] = found["result"]["items"]
    assert audit["id"] == "r_001"
    assert audit["payload"]["who"] == "local"
    assert audit["payload"]["decisions"][0] == {"id": "p_001", "action": "approve", "note": "fits"}
    assert (await items(workflows, job_id))["p_001"]["undo_token"] == "undo_p_001"


MISFITS: list[tuple[Any, str]] = [
    ({"decisions": [{"id": 1}]}, "payload.decisions[0].action"),
    ({"decisions": [{"id": 0, "action": "approve"}]}, "payload.decisions[0].id"),
    ({"decisions": [{"id": 1, "action": "burn"}]}, "payload.decisions[0].action"),
    ({"decisions": [approve(1), approve("p_001")]}, "payload.decisions[1].id"),
    ({"decisions": [approve(1, version=0)]}, "payload.decisions[0].version"),
    ({"decisions": [approve(1)] * 2001}, "payload.decisions"),
    ({"decisions": [approve(n, note="é" * 1000) for n in range(1, 18)]}, "payload.decisions"),
    ({"finalize": 1}, "payload.finalize"),
    ({"unheard_of": 1}, "payload.unheard_of"),
]


async def test_invalid_decisions_are_rejected(fake_workflows: Workflows) -> None:
    job_id = await reviewing(fake_workflows)
    for payload, field in MISFITS:
        answer = await execute(fake_workflows, job_id, "review", {"payload": payload})
        envelope = check_envelope(answer, 422, "validation_error")
        assert envelope["errors"][0]["field"].startswith(field)
    assert await statuses(fake_workflows, job_id) == ["proposed"] * 3
