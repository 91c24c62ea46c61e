"""Executing steps: what is started, how long a request waits, and its response."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import StoreUnavailable
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import Make
from tests.gateway.features.workflows.actions import (
    begin,
    event_types,
    execute,
    execute_path,
    fail,
    queued,
    running,
    work,
    work_up_to,
)
from tests.gateway.features.workflows.kit import Workflows, check_envelope, proposals
from tests.worker.kit import eventually

LONG = {"wait_s": 30}
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"wait_s": 31}, "wait_s"),
    ({"wait_s": -1}, "wait_s"),
    ({"wait_s": "5"}, "wait_s"),
    ({"strict": "yes"}, "strict"),
    ({"payload": []}, "payload"),
    ({"payload": {"sources": 3}}, "payload.sources"),
    ({"payload": {"unheard_of": 3}}, "payload"),
    ({"unheard_of": 1}, "unheard_of"),
    ({"idempotency_key": 7}, "idempotency_key"),
]


async def waiting(workflows: Workflows) -> None:
    """Wait until a request waits for events."""
    await eventually(lambda: workflows.gateway.hub._topics)


async def test_a_request_waits_for_its_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "sources"), LONG)
    await waiting(workflows)
    what = await running(workflows, job_id)
    await work(workflows, job_id)
    answer = await request.answer()
    body = answer.json()
    assert answer.status == 200
    assert answer.header("location") is None
    assert list(body) == ["success", "job_id", "step", "execution_id", "result", "errors"]
    assert (body["success"], body["job_id"], body["step"]) == (True, job_id, "sources")
    assert body["execution_id"] == what.execution
    assert body["errors"] == []
    assert [item["id"] for item in body["result"]["items"]] == ["s_001", "s_002"]
    assert body["result"]["bulk"] == {"supported": False, "last_operation": None}
    assert body["result"]["ontology_edits"]["supported"] is False
    assert workflows.gateway.hub.clients == 0


async def test_earlier_steps_run_first(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "proposals"), LONG)
    await waiting(workflows)
    for step in ("sources", "index_extract", "summarize"):
        assert await work(workflows, job_id) == step
        assert not request.task.done()
    what = await running(workflows, job_id)
    await workflows.complete(what, proposals(128), "Generated 128 proposals")
    body = (await request.answer()).json()
    assert (body["step"], body["execution_id"]) == ("proposals", what.execution)
    result = body["result"]
    assert result["summary"] == "Generated 128 proposals"
    assert (len(result["items"]), result["items"][0]["id"]) == (100, "p_001")
    page = result["pagination"]
    assert (page["count"], page["has_more"], page["total"]) == (100, True, 128)
    more = await workflows.read(f"/{job_id}/results?step=proposals&cursor={page['next_cursor']}")
    assert [item["id"] for item in more["result"]["items"]][:1] == ["p_101"]
    assert result["bulk"] == {"supported": True, "last_operation": None}
    assert result["ontology_edits"] == {"supported": True, "granular": True, "pending_changes": 0}


async def test_each_execution_is_one_core_job(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    answer = await execute(workflows, job_id, "sources", {"payload": {"sources": []}})
    args = {
        "workflow_job_id": job_id,
        "step": "sources",
        "execution_id": answer.json()["execution_id"],
    }
    assert await queued(workflows) == [{"tool": "workflow.step", "args": args}]


async def test_at_the_timeout_the_response_is_202(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    answer = await execute(workflows, job_id, "proposals", {"wait_s": 0.05})
    body = answer.json()
    assert answer.status == 202
    assert answer.header("location") == f"/api/workflow/jobs/{job_id}/status"
    assert answer.header("retry-after") == "1"
    assert body["success"] is True
    assert body["result"]["summary"] == "Execution accepted for step 'proposals'"
    assert body["result"]["items"] == []
    assert body["execution_id"] == (await running(workflows, job_id)).execution
    assert workflows.gateway.hub.clients == 0


@pytest.mark.parametrize("prefer", ["wait=0", "respond-async, wait=0"])
async def test_prefer_wait_sets_the_timeout(fake_workflows: Workflows, prefer: str) -> None:
    job_id = await fake_workflows.create_job()
    answer = await begin(
        fake_workflows, execute_path(job_id, "sources"), {}, prefer=prefer
    ).answer()
    assert answer.status == 202


async def test_a_failed_step_is_reported(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "sources"), LONG)
    await waiting(workflows)
    await fail(workflows, job_id)
    answer = await request.answer()
    body = answer.json()
    assert (answer.status, body["success"]) == (200, False)
    assert [error["code"] for error in body["errors"]] == ["step_failed", "boom"]
    assert "it broke" in body["errors"][0]["message"]
    assert body["result"]["items"] == []


async def test_a_failed_earlier_step_is_reported(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "proposals"), LONG)
    await waiting(workflows)
    await work(workflows, job_id)
    await fail(workflows, job_id)
    body = (await request.answer()).json()
    assert (body["success"], body["step"]) == (False, "proposals")
    assert "'index_extract' failed: it broke" in body["errors"][0]["message"]
    again = await execute(workflows, job_id, "proposals")
    assert again.status == 202  # continues with the failed step
    assert (await running(workflows, job_id)).step == "index_extract"


async def test_a_cancel_while_waiting_is_reported(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "sources"), LONG)
    await waiting(workflows)
    assert (await workflows.post(f"/{job_id}/cancel")).status == 200
    body = (await request.answer()).json()
    assert body["success"] is False
    assert body["errors"][0]["code"] == "step_cancelled"


async def test_execution_stops_at_a_review(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "apply"), LONG)
    await waiting(workflows)
    await work_up_to(workflows, job_id, "proposals")
    answer = await request.answer()
    assert answer.status == 202
    assert answer.json()["result"]["summary"] == "Step 'review' waits for decisions on 3 items"
    assert (await workflows.status(job_id))["status"] == "waiting_input"


async def test_the_job_is_read_only_after_relevant_events(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await workflows.create_job()
    reader = workflows.gateway.workflows.reader
    snapshot_reads, snapshot = 0, reader.snapshot

    async def counting(name: str) -> Any:
        nonlocal snapshot_reads
        snapshot_reads += 1
        return await snapshot(name)

    request = begin(workflows, execute_path(job_id, "sources"), LONG)
    await waiting(workflows)
    what = await running(workflows, job_id)
    monkeypatch.setattr(reader, "snapshot", counting)
    for done in range(1, 20):
        await workflows.store.progress(what, done, 20)
    await workflows.complete(what)
    assert (await request.answer()).status == 200
    assert snapshot_reads <= 2


async def test_a_client_that_disconnects_does_not_cancel_the_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "sources"), LONG, idempotency_key="k")
    await waiting(workflows)
    await request.hang_up()
    assert workflows.gateway.hub.clients == 0
    what = await running(workflows, job_id)  # nothing was cancelled
    again = await execute(workflows, job_id, "sources", LONG, idempotency_key="k")
    assert (again.status, again.json()["execution_id"]) == (202, what.execution)
    assert "step.progress" not in await event_types(workflows, job_id)


async def test_shutdown_ends_waiting_with_202(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "sources"), LONG)
    await waiting(workflows)
    workflows.gateway.hub.close_streams()
    assert (await request.answer()).status == 202


async def test_redis_failing_while_waiting_gets_202(
    fake_workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflows = fake_workflows
    job_id = await workflows.create_job()
    reader, calls = workflows.gateway.workflows.reader, 0
    snapshot = reader.snapshot

    async def once(name: str) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise StoreUnavailable("away")
        return await snapshot(name)

    monkeypatch.setattr(reader, "snapshot", once)
    answer = await begin(workflows, execute_path(job_id, "sources"), LONG).answer()
    assert answer.status == 202


# -- rejections ------------------------------------------------------------------------------


async def test_a_running_step_is_reported(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources")
    what = await running(workflows, job_id)
    envelope = check_envelope(await execute(workflows, job_id, "sources"), 409, "step_in_progress")
    assert (envelope["execution_id"], envelope["step"]) == (what.execution, "sources")
    assert what.execution in envelope["detail"]


async def test_a_review_cannot_be_skipped(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 2)
    check_envelope(await execute(workflows, job_id, "apply"), 409, "review_required")
    assert (await workflows.status(job_id))["status"] == "waiting_input"


async def test_strict_rejects_a_step_out_of_order(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    answer = await execute(workflows, job_id, "proposals", {"strict": True})
    assert check_envelope(answer, 409, "step_out_of_order")["step"] == "sources"


async def test_decisions_are_discarded_only_on_request(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 3)
    await workflows.post(f"/{job_id}/proposals/bulk", {"action": "approve", "proposal_ids": [2]})
    envelope = check_envelope(
        await execute(workflows, job_id, "proposals"), 409, "would_discard_decisions"
    )
    assert envelope["items"] == ["p_002"]
    assert [error["item_id"] for error in envelope["errors"]] == [None, "p_002"]
    again = await execute(workflows, job_id, "proposals", {"discard_decisions": True})
    assert again.status == 202


async def test_a_job_that_has_ended_is_rejected(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.post(f"/{job_id}/cancel")
    check_envelope(await execute(workflows, job_id, "sources"), 409, "job_terminal")


async def test_invalid_requests_are_rejected(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    before = await fake_workflows.gateway.snapshot()
    for body, field in MISFITS:
        answer = await execute(fake_workflows, job_id, "sources", body)
        envelope = check_envelope(answer, 422, "validation_error")
        assert envelope["errors"][0]["field"].startswith(field)
    assert await fake_workflows.gateway.snapshot() == before


async def test_unknown_steps_and_jobs_are_rejected(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    envelope = check_envelope(
        await execute(fake_workflows, job_id, "sauces"), 422, "unknown_step", "step_name"
    )
    assert "index_extract" in envelope["detail"]
    for unknown in ("wf_20200101_001", "x", "wf_1_1"):
        check_envelope(await execute(fake_workflows, unknown, "sources"), 404, "job_not_found")


async def test_a_full_queue_rejects_new_executions(make: Make) -> None:
    workflows = Workflows(make(backpressure_max_backlog=1))
    first, second = await workflows.create_job(), await workflows.create_job()
    assert (await execute(workflows, first, "sources", idempotency_key="a")).status == 202
    answer = await execute(workflows, second, "sources", idempotency_key="b")
    check_envelope(answer, 429, "queue_full")
    assert answer.header("retry-after")
    repeated = await execute(workflows, first, "sources", idempotency_key="a")
    assert repeated.status == 202  # the first request was accepted


async def test_a_gateway_under_pressure_rejects_new_executions(fake_workflows: Workflows) -> None:
    workflows = fake_workflows
    first, second = await workflows.create_job(), await workflows.create_job()
    await execute(workflows, first, "sources", idempotency_key="a")
    workflows.gateway.state.pressure.refusing = True
    check_envelope(await execute(workflows, second, "sources"), 503, "under_pressure")
    assert (await execute(workflows, first, "sources", idempotency_key="a")).status == 202


# -- tenants ---------------------------------------------------------------------------------


async def test_jobs_of_other_tenants_are_not_found(workflows: Workflows) -> None:
    own_key = await key_for(
        workflows.gateway, "own", scopes=("jobs:read", "jobs:write"), tenant="a"
    )
    other_key = await key_for(
        workflows.gateway, "other", scopes=("jobs:read", "jobs:write"), tenant="b"
    )
    job_id = await workflows.create_job(None, **bearer(own_key))
    denied = await execute(workflows, job_id, "sources", **bearer(other_key))
    check_envelope(denied, 404, "job_not_found")
    # Whichever caller executes it, the job belongs to the tenant.
    assert (await execute(workflows, job_id, "sources")).status == 202
    [record] = [key.decode() for key in await workflows.redis.keys("job:*-????????????")]
    core_id = record.removeprefix("job:")
    read = await workflows.gateway.client.get(f"/v1/jobs/{core_id}", bearer(own_key))
    assert read.status == 200
    read = await workflows.gateway.client.get(f"/v1/jobs/{core_id}", bearer(other_key))
    assert read.status == 404


async def test_executing_requires_scope_and_task(fake_workflows: Workflows) -> None:
    workflows = fake_workflows
    writes = await key_for(workflows.gateway, "w", scopes=("jobs:write",), tenant="a")
    reads = await key_for(workflows.gateway, "r", scopes=("jobs:read",), tenant="a")
    chats = await key_for(
        workflows.gateway, "c", scopes=("jobs:write",), tenant="a", tasks=("chat",)
    )
    job_id = await workflows.create_job(None, **bearer(writes))
    check_envelope(await execute(workflows, job_id, "sources", **bearer(reads)), 403)
    envelope = await execute(workflows, job_id, "sources", **bearer(chats))
    check_envelope(envelope, 403, "task_not_allowed")
    # A caller without the read scope does not wait.
    assert (await execute(workflows, job_id, "sources", LONG, **bearer(writes))).status == 202
