"""Executing and cancelling steps: what is started, how long a request waits, its response."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.common.errors import StoreUnavailable
from tests.support.gateway.asgi import Exchange
from tests.support.gateway.faults import raising, record_calls
from tests.support.gateway.harness import Make
from tests.support.gateway.workflows import Workflows, check_envelope, execute_path, proposals
from tests.support.worker.harness import eventually

pytestmark = pytest.mark.fakeredis_only

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


async def start(workflows: Workflows, step: str, **headers: str) -> tuple[str, Exchange]:
    """A new job, and a request that waits for one of its steps."""
    job_id = await workflows.create_job()
    return job_id, await wait_for(workflows, job_id, step, **headers)


async def wait_for(workflows: Workflows, job_id: str, step: str, **headers: str) -> Exchange:
    request = workflows.begin(execute_path(job_id, step), LONG, **headers)
    await eventually(lambda: workflows.gateway.hub._topics)
    return request


async def test_a_request_waits_for_its_step(workflows: Workflows) -> None:
    job_id, request = await start(workflows, "sources")
    what = await workflows.running(job_id)
    args = {"workflow_job_id": job_id, "step": "sources", "execution_id": what.execution}
    assert await workflows.queued() == [{"tool": "workflow.step", "args": args}]
    await workflows.work(job_id)
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
    job_id, request = await start(workflows, "proposals")
    for step in ("sources", "index_extract", "summarize"):
        assert await workflows.work(job_id) == step
        assert not request.task.done()
    what = await workflows.running(job_id)
    await workflows.complete(what, proposals(128), "Generated 128 proposals")
    body = (await request.answer()).json()
    assert (body["step"], body["execution_id"]) == ("proposals", what.execution)
    shown = (await workflows.read(f"/{job_id}/results?step=proposals"))["result"]
    assert body["result"] == shown
    assert (shown["pagination"]["count"], shown["pagination"]["total"]) == (100, 128)


async def test_at_the_timeout_and_at_shutdown_the_response_is_202(workflows: Workflows) -> None:
    for how in ({"wait_s": 0.05}, LONG, {}):
        job_id = await workflows.create_job()
        prefer = {} if how else {"prefer": "respond-async, wait=0"}
        request = workflows.begin(execute_path(job_id, "proposals"), how, **prefer)
        if how is LONG:
            await eventually(lambda: workflows.gateway.hub._topics)
            workflows.gateway.hub.close_streams()
        answer = await request.answer()
        body = answer.json()
        assert answer.status == 202
        assert answer.header("location") == f"/api/workflow/jobs/{job_id}/status"
        assert answer.header("retry-after") == "1"
        assert body["success"] is True
        assert body["result"]["summary"] == "Execution accepted for step 'proposals'"
        assert body["result"]["items"] == []
        assert body["execution_id"] == (await workflows.running(job_id)).execution
        assert workflows.gateway.hub.clients == 0


async def test_failed_and_cancelled_steps_are_reported(workflows: Workflows) -> None:
    job_id, request = await start(workflows, "proposals")
    await workflows.work(job_id)
    await workflows.fail(job_id)
    answer = await request.answer()
    body = answer.json()
    assert (answer.status, body["success"], body["step"]) == (200, False, "proposals")
    assert [error["code"] for error in body["errors"]] == ["step_failed", "boom"]
    assert "'index_extract' failed: it broke" in body["errors"][0]["message"]
    assert body["result"]["items"] == []
    request = await wait_for(workflows, job_id, "proposals")
    assert (await workflows.running(job_id)).step == "index_extract", "continues where it failed"
    assert (await workflows.post(f"/{job_id}/cancel")).status == 200
    body = (await request.answer()).json()
    assert (body["success"], body["errors"][0]["code"]) == (False, "step_cancelled")
    answer = await workflows.execute(job_id, "sources")
    check_envelope(answer, 409, "job_terminal")


async def test_the_job_is_read_only_after_relevant_events(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, request = await start(workflows, "sources")
    what = await workflows.running(job_id)
    reads = record_calls(monkeypatch, workflows.gateway.workflows.reader, "snapshot")
    for done in range(1, 20):
        await workflows.store.progress(what, done, 20)
    await workflows.complete(what)
    assert (await request.answer()).status == 200
    assert len(reads) <= 2


async def test_a_client_that_disconnects_does_not_cancel_the_step(workflows: Workflows) -> None:
    job_id, request = await start(workflows, "sources", idempotency_key="k")
    await request.hang_up()
    assert workflows.gateway.hub.clients == 0
    what = await workflows.running(job_id)  # nothing was cancelled
    again = await workflows.execute(job_id, "sources", LONG, idempotency_key="k")
    assert (again.status, again.json()["execution_id"]) == (202, what.execution)
    assert "step.progress" not in await workflows.event_types(job_id)


async def test_redis_failing_while_waiting_gets_202(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, request = await start(workflows, "sources")
    what, reader = await workflows.running(job_id), workflows.gateway.workflows.reader
    monkeypatch.setattr(reader, "snapshot", raising(StoreUnavailable("away")))
    await workflows.complete(what)
    assert (await request.answer()).status == 202


async def test_steps_that_cannot_start_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    answer = await workflows.execute(job_id, "proposals", {"strict": True})
    assert check_envelope(answer, 409, "step_out_of_order")["step"] == "sources"
    await workflows.execute(job_id, "sources")
    what = await workflows.running(job_id)
    envelope = check_envelope(await workflows.execute(job_id, "sources"), 409, "step_in_progress")
    assert (envelope["execution_id"], envelope["step"]) == (what.execution, "sources")
    assert what.execution in envelope["detail"]
    reviewed = await workflows.create_job()
    await workflows.until_proposals(reviewed, 2)
    check_envelope(await workflows.execute(reviewed, "apply"), 409, "review_required")
    decision = {"action": "approve", "proposal_ids": [2]}
    await workflows.post(f"/{reviewed}/proposals/bulk", decision)
    answer = await workflows.execute(reviewed, "proposals")
    envelope = check_envelope(answer, 409, "would_discard_decisions")
    assert envelope["items"] == ["p_002"]
    assert [error["item_id"] for error in envelope["errors"]] == [None, "p_002"]
    again = await workflows.execute(reviewed, "proposals", {"discard_decisions": True})
    assert again.status == 202


async def test_invalid_requests_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    before = await workflows.gateway.snapshot()
    for body, field in MISFITS:
        answer = await workflows.execute(job_id, "sources", body)
        envelope = check_envelope(answer, 422, "validation_error")
        assert envelope["errors"][0]["field"].startswith(field)
    answer = await workflows.execute(job_id, "sauces")
    envelope = check_envelope(answer, 422, "unknown_step", "step_name")
    assert "index_extract" in envelope["detail"]
    for unknown in ("wf_20200101_001", "x", "wf_1_1"):
        check_envelope(await workflows.execute(unknown, "sources"), 404, "job_not_found")
    assert await workflows.gateway.snapshot() == before


async def test_a_full_queue_and_pressure_reject_new_executions(make: Make) -> None:
    workflows = Workflows(make(backpressure_max_backlog=1))
    first, second = await workflows.create_job(), await workflows.create_job()
    assert (await workflows.execute(first, "sources", idempotency_key="a")).status == 202
    answer = await workflows.execute(second, "sources", idempotency_key="b")
    check_envelope(answer, 429, "queue_full")
    assert answer.header("retry-after")
    workflows.gateway.state.pressure.refusing = True
    check_envelope(await workflows.execute(second, "sources"), 503, "under_pressure")
    repeated = await workflows.execute(first, "sources", idempotency_key="a")
    assert repeated.status == 202  # the first request was accepted


async def test_canceling_ends_the_running_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.execute(job_id, "sources")
    [(_, message)] = await workflows.redis.xrange(workflows.gateway.keys.queue)
    answer = await workflows.post(f"/{job_id}/cancel", {"reason": "not needed"})
    body = answer.json()
    assert answer.status == 200
    assert list(body) == ["success", "job_id", "job"]
    assert (body["success"], body["job_id"]) == (True, job_id)
    assert (body["job"]["status"], body["job"]["stepper"][0]["status"]) == ("cancelled",) * 2
    assert body["job"]["completed_at"]
    core = f"/v1/jobs/{message[b'job_id'].decode()}"
    assert (await workflows.gateway.client.get(core)).json()["status"] == "canceled"
    event = (await workflows.read(f"/{job_id}/events"))["events"][-1]
    assert (event["type"], event["data"]["reason"]) == ("job.cancelled", "not needed")
    before = await workflows.gateway.snapshot()
    again = await workflows.post(f"/{job_id}/cancel", {"reason": "other"})
    assert (again.status, again.json()) == (200, body)
    assert await workflows.gateway.snapshot() == before


async def test_invalid_cancels_are_rejected(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    for body in ({"reason": 1}, {"reason": "x" * 501}, {"why": "x"}, []):
        check_envelope(await workflows.post(f"/{job_id}/cancel", body), 422)
    check_envelope(await workflows.post("/wf_20200101_001/cancel"), 404, "job_not_found")
    assert (await workflows.status(job_id))["status"] == "queued"
    await workflows.execute(job_id, "sources")
    await workflows.store.fail(await workflows.running(job_id), b"[]")
    check_envelope(await workflows.post(f"/{job_id}/cancel"), 409, "job_terminal")
