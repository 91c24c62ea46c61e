"""Authorisation: which callers may change a workflow job, and what each of them may see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.access_kit import bearer, key_for
from tests.gateway.asgi import Answer
from tests.gateway.features.workflows.actions import execute, running, send, work
from tests.gateway.features.workflows.kit import Workflows, check_envelope

BOTH = ("jobs:read", "jobs:write")
APPROVE: dict[str, Any] = {"action": "approve", "all": True}
ONCE = {"idempotency_key": "k-4"}
#: By name: method, path and body of what changes a job.
CHANGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bulk": ("POST", "proposals/bulk", APPROVE),
    "ontology": ("PATCH", "proposals/p_001/ontology", {"to": "x"}),
    "undo": ("POST", "undo", {"undo_token": "undo_p_001"}),
    "cancel": ("POST", "cancel", {}),
}


async def key_of(workflows: Workflows, *scopes: str, **more: Any) -> dict[str, str]:
    """Headers of a new key of tenant a."""
    name = "-".join((*scopes, *more))
    return bearer(await key_for(workflows.gateway, name, scopes=scopes, tenant="a", **more))


async def change(workflows: Workflows, job_id: str, name: str, **headers: str) -> Answer:
    method, path, body = CHANGES[name]
    return await send(workflows, f"/{job_id}/{path}", body, method, **headers)


@pytest.mark.parametrize("name", CHANGES)
async def test_responses_with_items_need_both_scopes(fake_workflows: Workflows, name: str) -> None:
    writes = await key_of(fake_workflows, "jobs:write")
    job_id = await fake_workflows.create_job(None, **writes)
    await fake_workflows.until_proposals(job_id, 2)
    answer = await change(fake_workflows, job_id, name, **writes)
    if name == "cancel":
        assert answer.status == 200
    else:
        check_envelope(answer, 403, "insufficient_scope")


@pytest.mark.parametrize("name", CHANGES)
async def test_a_key_for_other_tasks_is_rejected(fake_workflows: Workflows, name: str) -> None:
    chats = await key_of(fake_workflows, *BOTH, tasks=("chat",))
    reads = await key_of(fake_workflows, *BOTH)
    job_id = await fake_workflows.create_job(None, **reads)
    await fake_workflows.until_proposals(job_id, 2)
    answer = await change(fake_workflows, job_id, name, **chats)
    check_envelope(answer, 403, "task_not_allowed")
    missing = await change(fake_workflows, "wf_20200101_001", name, **chats)
    check_envelope(missing, 404, "job_not_found")


async def test_a_caller_without_read_scope_gets_no_result(workflows: Workflows) -> None:
    writes, both = await key_of(workflows, "jobs:write"), await key_of(workflows, *BOTH)
    job_id = await workflows.create_job(None, **writes)
    first = await execute(workflows, job_id, "sources", **writes, **ONCE)
    assert first.status == 202
    what = await execution_of(workflows, job_id)
    await work(workflows, job_id)
    # Again, before and after an authorised caller got the result with the same key.
    hidden = await execute(workflows, job_id, "sources", **writes, **ONCE)
    assert (hidden.status, hidden.body) == (202, first.body)
    shown = await execute(workflows, job_id, "sources", **both, **ONCE)
    assert (shown.status, len(shown.json()["result"]["items"])) == (200, 2)
    hidden = await execute(workflows, job_id, "sources", **writes, **ONCE)
    assert (hidden.status, hidden.json()["result"]["items"]) == (202, [])
    assert hidden.json()["execution_id"] == what
    again = await execute(workflows, job_id, "sources", **both, **ONCE)
    assert again.body == shown.body  # and it is still kept


async def execution_of(workflows: Workflows, job_id: str) -> str:
    return (await running(workflows, job_id)).execution


async def test_without_read_scope_an_ended_review_has_no_items(workflows: Workflows) -> None:
    writes = await key_of(workflows, "jobs:write")
    job_id = await workflows.create_job(None, **writes)
    await workflows.until_proposals(job_id, 0)
    limited = await execute(workflows, job_id, "review", **writes)
    assert (limited.status, limited.json()["result"]["items"]) == (
        202,
        [],
    )


async def test_a_caller_without_read_scope_may_decide(workflows: Workflows) -> None:
    writes, both = await key_of(workflows, "jobs:write"), await key_of(workflows, *BOTH)
    job_id = await workflows.create_job(None, **writes)
    await workflows.until_proposals(job_id, 1)
    stale = {"decisions": [{"id": 1, "action": "approve", "version": 7}]}
    limited = await execute(workflows, job_id, "review", {"payload": stale}, **writes)
    assert (limited.status, limited.json()["items"]) == (409, [])
    decision = {"payload": {"decisions": [{"id": 1, "action": "approve"}]}}
    shown = await execute(workflows, job_id, "review", decision, **both, **ONCE)
    assert (shown.status, len(shown.json()["result"]["items"])) == (200, 1)
    limited = await execute(workflows, job_id, "review", decision, **writes, **ONCE)
    body = limited.json()
    assert (limited.status, body["result"]["items"], body["completed"]) == (
        202,
        [],
        True,
    )
    again = await execute(workflows, job_id, "review", decision, **both, **ONCE)
    assert again.body == shown.body
