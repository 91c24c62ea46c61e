"""Reviews through the execute route of the review step."""

from __future__ import annotations

from typing import Any

from tests.gateway.features.workflows.acting import (
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
    """Decisions through the review; the answer."""
    payload = {"decisions": list(decisions), **more}
    return await execute(workflows, job_id, "review", {"payload": payload})


def approve(item: str | int, **more: Any) -> dict[str, Any]:
    return {"id": item, "action": "approve", **more}


def reject(item: str | int, **more: Any) -> dict[str, Any]:
    return {"id": item, "action": "reject", **more}


async def test_it_waits_for_decisions(workflows: Workflows) -> None:
    job_id = await workflows.made()
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


async def test_decisions_one_by_one(workflows: Workflows) -> None:
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


async def test_the_rest_is_rejected(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await decide(workflows, job_id, approve(1), finalize=True)
    assert (answer.status, answer.json()["applied"]) == (200, 3)
    assert await statuses(workflows, job_id) == ["approved", "rejected", "rejected"]


async def test_it_goes_on_by_itself(workflows: Workflows) -> None:
    job_id = await workflows.made({"auto_advance": True})
    await work_up_to(workflows, job_id, "proposals")
    answer = await decide(workflows, job_id, finalize=True)
    what = await running(workflows, job_id)
    assert what.step == "apply"
    started = answer.json()["started"]
    assert started == {"step": "apply", "execution_id": what.execution}


async def test_without_proposals_it_is_complete_at_once(workflows: Workflows) -> None:
    job_id = await workflows.made()
    await workflows.until_proposals(job_id, 0)
    answer = await execute(workflows, job_id, "review")
    assert (answer.status, answer.json()["result"]["summary"]) == (200, "Nothing to decide")


async def test_decisions_before_it_was_opened(workflows: Workflows) -> None:
    job_id = await workflows.made()
    await workflows.until_proposals(job_id, 2)
    answer = await decide(workflows, job_id, approve(1), approve(2))
    assert answer.status == 200
    assert (await event_types(workflows, job_id)).count("step.completed") == 5


async def test_a_request_that_waits_hears_of_the_review(workflows: Workflows) -> None:
    job_id = await workflows.made()
    asked = begin(workflows, execute_path(job_id, "review"), {"wait_s": 30})
    await eventually(lambda: workflows.gateway.hub._topics)
    await work_up_to(workflows, job_id, "proposals")
    answer = await asked.answer()
    assert answer.status == 202
    assert (await workflows.status(job_id))["status"] == "waiting_input"


async def test_some_decisions_cannot_be_made(workflows: Workflows) -> None:
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
    told = {error["item_id"]: error["code"] for error in body["errors"]}
    assert told == {
        "p_001": "version_conflict",
        "p_009": "item_not_found",
        "s_001": "item_not_found",
    }
    [conflict] = [error for error in body["errors"] if error["item_id"] == "p_001"]
    assert (conflict["version"], conflict["status"]) == (1, "proposed")
    assert await statuses(workflows, job_id) == ["proposed", "approved", "proposed"]


async def test_all_have_changed_meanwhile(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    await decide(workflows, job_id, reject(1))
    answer = await decide(workflows, job_id, approve(1, version=1), finalize=True)
    body = answer.json()
    assert (answer.status, body["success"], body["step"]) == (409, False, "review")
    assert body["detail"] == body["errors"][0]["message"]
    assert [error["code"] for error in body["errors"]] == ["version_conflict"]
    assert [(item["id"], item["version"]) for item in body["items"]] == [("p_001", 2)]
    assert await statuses(workflows, job_id) == ["rejected", "proposed", "proposed"]


async def test_what_is_wrong_is_not_finalized(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    answer = await decide(workflows, job_id, approve("p_009"), finalize=True)
    assert (answer.status, answer.json()["success"]) == (202, False)
    assert await statuses(workflows, job_id) == ["proposed"] * 3


async def test_nothing_to_decide_on(workflows: Workflows) -> None:
    job_id = await workflows.made()
    check_envelope(await decide(workflows, job_id, approve(1)), 409, "not_reviewable")
    await workflows.post(f"/{job_id}/cancel")
    check_envelope(await decide(workflows, job_id, approve(1)), 409, "not_reviewable")


async def test_who_decided_what(workflows: Workflows) -> None:
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


async def test_decisions_that_are_none(fake_workflows: Workflows) -> None:
    job_id = await reviewing(fake_workflows)
    for payload, field in MISFITS:
        answer = await execute(fake_workflows, job_id, "review", {"payload": payload})
        told = check_envelope(answer, 422, "validation_error")
        assert told["errors"][0]["field"].startswith(field)
    assert await statuses(fake_workflows, job_id) == ["proposed"] * 3
