"""Undo by a script or by a worker: once, completely or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.common.contracts.workflow.statuses import WorkflowError
from sluice.common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Answer, Exchange
from tests.support.gateway.workflows import KEYS, Workflows, check_envelope
from tests.support.worker.harness import eventually

pytestmark = pytest.mark.fakeredis_only

TOKEN = "undo_beef0000"
OK = {"answer": "ok", "undone": ["p_001"], "items": [], "code": None}


async def undo(workflows: Workflows, job_id: str, token: str) -> Answer:
    return await workflows.post(f"/{job_id}/undo", {"undo_token": token})


async def approved(workflows: Workflows, job_id: str) -> str:
    """The token of a bulk operation on two proposals."""
    body = {"action": "approve", "proposal_ids": [1, 2]}
    return (await workflows.post(f"/{job_id}/proposals/bulk", body)).json()["undo_token"]


async def test_an_operation_is_undone_once(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    token = await approved(workflows, job_id)
    answer = await undo(workflows, job_id, token)
    body = answer.json()
    assert answer.status == 200
    assert (body["success"], body["undo_token"]) == (True, token)
    assert body["undone"] == ["p_001", "p_002"]
    assert [(item["status"], item["version"]) for item in body["items"]] == [("proposed", 3)] * 2
    assert body["undo"] == {"depth": 0, "last_undo_token": None}
    assert (body["status"], body["draft_state"]) == ("waiting_input", "dirty")
    assert (await workflows.event_types(job_id))[-1] == "undo.applied"
    check_envelope(await undo(workflows, job_id, token), 404, "unknown_undo_token")
    token = await approved(workflows, job_id)
    assert (await undo(workflows, job_id, "undo_p_001")).json()["undone"] == ["p_001"]
    assert (await workflows.items(job_id))["p_001"]["undo_token"] is None
    assert (await undo(workflows, job_id, token)).json()["undone"] == ["p_002"]


async def test_items_that_have_changed_are_a_conflict(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    token = await approved(workflows, job_id)
    await workflows.post(f"/{job_id}/proposals/bulk", {"action": "reject", "proposal_ids": [2]})
    envelope = check_envelope(await undo(workflows, job_id, token), 409, "undo_conflict")
    assert envelope["items"] == ["p_002"]
    assert [error["item_id"] for error in envelope["errors"]] == [None, "p_002"]
    assert await workflows.statuses(job_id) == ["approved", "rejected", "proposed"]


async def test_unknown_and_invalid_tokens_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.reviewing()
    for token in ("undo_00000000", "undo_p_001", "undo_p_404"):
        check_envelope(await undo(workflows, job_id, token), 404, "unknown_undo_token")
    for token in ("", "p_001", "undo_", "undo_*", "undo_p 001", "undo_" + "x" * 65):
        answer = await undo(workflows, job_id, token)
        check_envelope(answer, 422, "validation_error", "undo_token")
    check_envelope(await undo(workflows, "wf_20200101_001", "undo_p_001"), 404)


# -- undo by a worker --------------------------------------------------------------------------


class Beyond:
    """A job with an operation that had external effects, and the core job that undoes them."""

    def __init__(self, workflows: Workflows, job_id: str) -> None:
        self.workflows = workflows
        self.gateway = workflows.gateway
        self.job_id = job_id

    def ask(self, **more: Any) -> Exchange:
        body = {"undo_token": TOKEN, "wait_s": 30, **more}
        return self.workflows.begin(f"/{self.job_id}/undo", body)

    async def cores(self) -> list[str]:
        """Ids of core jobs, in the order in which they were accepted."""
        entries = [fields for _, fields in await self.gateway.redis.xrange(self.gateway.keys.queue)]
        undoing = [each for each in entries if b"workflow.undo" in each[b"payload"]]
        return [each[b"job_id"].decode() for each in undoing]

    async def core(self) -> str:
        """The last undo job, once it exists and a request waits for it."""
        await eventually(lambda: self.gateway.hub._topics)
        return (await self.cores())[-1]

    async def end(self, core_id: str, result: dict[str, Any], status: str = "done") -> None:
        """As a worker does."""
        fields = {"status": status, "result": json.dumps(result)}
        await self.gateway.redis.hset(self.gateway.keys.job(core_id), mapping=fields)
        await self.gateway.emit(core_id, status)


@pytest.fixture
async def beyond(workflows: Workflows, monkeypatch: pytest.MonkeyPatch) -> Beyond:
    """A job whose undo needs a worker."""
    job_id = await workflows.reviewing()
    undo_by_script = workflows.store.undo

    async def by_worker(name: str, token: str, once: Any) -> WorkflowOutcome:
        if token != TOKEN:
            return await undo_by_script(name, token, once)
        return WorkflowOutcome(WorkflowAnswer.BEYOND, {"token": token})

    monkeypatch.setattr(workflows.store, "undo", by_worker)
    return Beyond(workflows, job_id)


async def test_effects_are_undone_by_a_worker_once(beyond: Beyond) -> None:
    first, second = beyond.ask(), beyond.ask()
    await eventually(lambda: len(beyond.gateway.hub._subscribers) == 2)
    core_id = await beyond.core()
    args = {"workflow_job_id": beyond.job_id, "undo_token": TOKEN}
    assert (await beyond.workflows.queued())[-1] == {"tool": "workflow.undo", "args": args}
    await beyond.end(core_id, OK)
    for request in (first, second):
        answer = await request.answer()
        assert (answer.status, answer.json()["undone"]) == (200, ["p_001"])
        assert [item["id"] for item in answer.json()["items"]] == ["p_001"]
    assert await beyond.cores() == [core_id]


async def test_failures_of_the_worker_are_reported(beyond: Beyond) -> None:
    refused = {"answer": "refused", "undone": [], "items": ["p_002"], "code": "undo_conflict"}
    missing = {"answer": "missing", "undone": [], "items": [], "code": None}
    for number, (result, status, expected, code) in enumerate(
        (
            (refused, "done", 409, "undo_conflict"),
            (missing, "done", 404, WorkflowError.UNKNOWN_UNDO.value),
            ({}, "error", 500, "undo_failed"),
            ({}, "canceled", 500, "undo_failed"),
        ),
        1,
    ):
        request = beyond.ask()
        core_id = await beyond.core()
        assert len(await beyond.cores()) == number, "a repeated request gets a new job"
        await beyond.end(core_id, result, status)
        envelope = check_envelope(await request.answer(), expected, code)
        if result is refused:
            assert envelope["items"] == ["p_002"]
    answer = await beyond.ask(wait_s=0.05).answer()
    assert (answer.status, answer.json()["undone"]) == (202, [])
    assert answer.header("location") == f"/api/workflow/jobs/{beyond.job_id}/status"


@pytest.mark.parametrize("wait_s", [0, 30])
async def test_after_a_failure_the_same_key_tries_again(
    workflows: Workflows, wait_s: float
) -> None:
    """An operation with effects, through the real scripts."""
    job_id = await workflows.reviewing()
    beyond = Beyond(workflows, job_id)
    operation = json.dumps({"kind": "step", "items": {}, "effects": {"a": "b"}})
    await workflows.redis.hset(KEYS.operations(job_id), TOKEN, operation)
    await workflows.redis.lpush(KEYS.undo(job_id), TOKEN)

    request = beyond.ask(wait_s=wait_s, idempotency_key="k")
    if wait_s:
        await beyond.end(await beyond.core(), {}, "error")
    else:
        assert (await request.answer()).status == 202
        await beyond.end((await beyond.cores())[-1], {}, "error")
        request = beyond.ask(wait_s=wait_s, idempotency_key="k")
    check_envelope(await request.answer(), 500, "undo_failed")
    assert len(await beyond.cores()) == 1

    request = beyond.ask(idempotency_key="k")
    await beyond.end(await beyond.core(), OK)
    answer = await request.answer()
    assert (answer.status, answer.json()["undone"]) == (200, ["p_001"])
    assert len(await beyond.cores()) == 2
    assert (await beyond.ask(idempotency_key="k").answer()).body == answer.body


async def test_the_undo_job_belongs_to_the_tenant(beyond: Beyond) -> None:
    workflows = beyond.workflows
    key = await key_for(workflows.gateway, "k", scopes=("jobs:read", "jobs:write"), tenant="a")
    job_id = await workflows.create_job(None, **bearer(key))
    body = {"undo_token": TOKEN, "wait_s": 0}
    assert (await workflows.post(f"/{job_id}/undo", body)).status == 202  # by an administrator
    [core_id] = await beyond.cores()
    read = await workflows.gateway.client.get(f"/v1/jobs/{core_id}", bearer(key))
    assert read.status == 200
