"""An echo worker with steps and undo operations of workflows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from tests.worker.features.workflows.kit import FlowMaker, WorkflowRig, definition, nothing
from worker.features.workflows import job_failure
from worker.handlers import echo
from worker.registry import Registry

FLOW = definition("gather", "sort")


async def echo_rig(flows: FlowMaker) -> WorkflowRig:
    """As in `python -m worker.echo_worker`."""
    registry = Registry()
    echo.register(registry)
    job_failure.register(registry)
    rig: WorkflowRig = await flows(registry=registry)
    return rig


async def test_an_echo_worker_fails_a_step_with_a_remedy(flows: FlowMaker) -> None:
    rig = await echo_rig(flows)
    job_id = await rig.create(FLOW)
    ended = await rig.run(job_id, "gather")
    assert ended.status.value == "failed"
    [error] = ended.errors
    assert error["code"] == "step_failed"
    assert "`python -m worker`" in error["message"]
    [other] = await rig.post(task="tool", payload=b'{"tool":"roll"}')
    assert await rig.settled(other) == b"done"


def undo_payload(job_id: str = "wf_20260214_001", token: Any = "undo_0a1b2c3d") -> bytes:
    args = {"workflow_job_id": job_id, "undo_token": token}
    return json.dumps({"tool": "workflow.undo", "args": args}).encode()


async def test_an_echo_worker_undoes_nothing(fake_flows: FlowMaker) -> None:
    rig = await echo_rig(fake_flows)
    [core_job] = await rig.post(task="tool", payload=undo_payload())
    assert await rig.settled(core_job) == b"error"
    assert (await rig.error(core_job))["kind"] == "step_failed"


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (
            WorkflowOutcome(WorkflowAnswer.OK, {"undone": ["p_001"]}),
            {"answer": "ok", "undone": ["p_001"], "items": [], "code": None},
        ),
        (
            WorkflowOutcome(WorkflowAnswer.ALREADY, {"undone": {}}),
            {"answer": "already", "undone": [], "items": [], "code": None},
        ),
        (
            WorkflowOutcome(WorkflowAnswer.REFUSED, {"code": "undo_conflict", "items": ["p_001"]}),
            {"answer": "refused", "undone": [], "items": ["p_001"], "code": "undo_conflict"},
        ),
    ],
    ids=lambda each: each.answer.value if isinstance(each, WorkflowOutcome) else "",
)
async def test_an_undo_returns_its_outcome(
    fake_flows: FlowMaker, monkeypatch: Any, outcome: WorkflowOutcome, result: dict[str, Any]
) -> None:
    rig = await fake_flows((FLOW, {"gather": nothing, "sort": nothing}))
    asked: list[tuple[str, str]] = []

    async def undo_with_effects(job_id: str, token: str) -> WorkflowOutcome:
        asked.append((job_id, token))
        return outcome

    monkeypatch.setattr(rig.workflows, "undo_with_effects", undo_with_effects)
    [core_job] = await rig.post(task="tool", payload=undo_payload())
    assert await rig.settled(core_job) == b"done"
    assert json.loads((await rig.job(core_job))[b"result"]) == result
    assert asked == [("wf_20260214_001", "undo_0a1b2c3d")]


async def test_an_undo_of_an_unknown_operation(flows: FlowMaker) -> None:
    rig = await flows((FLOW, {"gather": nothing, "sort": nothing}))
    job_id = await rig.create(FLOW)
    for payload in (undo_payload(), undo_payload(job_id)):
        [core_job] = await rig.post(task="tool", payload=payload)
        assert await rig.settled(core_job) == b"done"
        assert json.loads((await rig.job(core_job))[b"result"])["answer"] == "missing"


async def test_invalid_undo_payloads_are_refused(fake_flows: FlowMaker) -> None:
    rig = await fake_flows((FLOW, {"gather": nothing, "sort": nothing}))
    for payload in (
        undo_payload("job:1"),
        undo_payload(token=3),
        undo_payload(token=""),
        b'{"tool":"workflow.undo"}',
    ):
        [core_job] = await rig.post(task="tool", payload=payload)
        await rig.settled(core_job)
        assert (await rig.error(core_job))["kind"] == "invalid_payload"
