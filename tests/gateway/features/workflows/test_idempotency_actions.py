"""Repeated requests with the same key are executed once and get the same response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from common.errors import StoreUnavailable
from common.process.crashpoints import CrashPoint
from gateway.features.workflows import decide as deciding
from gateway.features.workflows import edit as editing
from gateway.features.workflows import execute as cancelling
from gateway.features.workflows import lookup
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.asgi import Answer
from tests.gateway.features.workflows.actions import (
    begin,
    event_types,
    execute,
    execute_path,
    fail,
    queued,
    reviewing,
    running,
    send,
    statuses,
    work,
)
from tests.gateway.features.workflows.kit import Workflows, check_envelope
from tests.gateway.test_crash_points import Crash, Died, crash_at
from tests.worker.kit import eventually

__all__ = ["crash_at"]
KEY = {"idempotency_key": "k-17"}
Act = Callable[..., Awaitable[Answer]]


async def bulk(workflows: Workflows, job_id: str, **headers: str) -> Answer:
    body = {"action": "approve", "proposal_ids": [1]}
    return await workflows.post(f"/{job_id}/proposals/bulk", body, **headers)


async def edit(workflows: Workflows, job_id: str, **headers: str) -> Answer:
    path = f"/{job_id}/proposals/1/ontology"
    return await send(workflows, path, {"to": "x", "version": 1}, method="PATCH", **headers)


async def decide(workflows: Workflows, job_id: str, **headers: str) -> Answer:
    payload = {"decisions": [{"id": 1, "action": "approve"}]}
    return await execute(workflows, job_id, "review", {"payload": payload}, **headers)


async def cancel(workflows: Workflows, job_id: str, **headers: str) -> Answer:
    return await workflows.post(f"/{job_id}/cancel", {}, **headers)


async def undo(workflows: Workflows, job_id: str, **headers: str) -> Answer:
    return await workflows.post(f"/{job_id}/undo", {"undo_token": "undo_p_002"}, **headers)


async def again(workflows: Workflows, job_id: str, **headers: str) -> Answer:
    body = {"discard_decisions": True}
    return await execute(workflows, job_id, "proposals", body, **headers)


ACTIONS = [bulk, edit, decide, cancel, undo, again]


def name_of(act: Act) -> str:
    return act.__name__


async def ready(workflows: Workflows) -> str:
    """A job with a decision on p_002, but none on p_001 and p_003."""
    job_id = await reviewing(workflows)
    body = {"action": "reject", "proposal_ids": [2]}
    assert (await workflows.post(f"/{job_id}/proposals/bulk", body)).status == 200
    return job_id


async def everything(workflows: Workflows) -> dict[bytes, Any]:
    """Every key with its value; hashes as dicts, because Redis may reorder their fields."""
    found = await workflows.gateway.snapshot()
    for key in [key for key in found if key.startswith(b"idempotency.")]:
        found[key] = await workflows.redis.hgetall(key)
    return found


@pytest.mark.parametrize("act", ACTIONS, ids=name_of)
async def test_a_repeated_request_gets_the_same_response(workflows: Workflows, act: Act) -> None:
    job_id = await ready(workflows)
    first = await act(workflows, job_id, **KEY)
    assert first.status in (200, 202)
    assert first.header("idempotency-replayed") is None
    before = await everything(workflows)
    repeated = await act(workflows, job_id, **KEY)
    assert (repeated.status, repeated.body) == (first.status, first.body)
    assert repeated.header("idempotency-replayed") == "true"
    assert repeated.header("location") == first.header("location")
    assert await everything(workflows) == before


@pytest.mark.parametrize("act", ACTIONS, ids=name_of)
async def test_after_a_crash_the_response_is_rebuilt(
    workflows: Workflows, act: Act, crash_at: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway dies between the change and its response."""
    for module in (lookup, cancelling, deciding, editing):
        monkeypatch.setattr(module, "ANSWER_MARGIN_MS", 60_000)  # longer than a slow machine takes
    job_id = await ready(workflows)
    crash_at(CrashPoint.BEFORE_WORKFLOW_ANSWER)
    with pytest.raises(Died):
        await act(workflows, job_id, **KEY)
    before = await event_types(workflows, job_id)
    response = await act(workflows, job_id, **KEY)
    check_envelope(response, 409, "request_in_progress")  # the first request may still be running
    assert response.header("retry-after") == "1"
    [answer] = await workflows.redis.keys("idempotency.wf:*k-17")
    await workflows.redis.hset(answer, "claimed_until_ms", "1")
    response = await act(workflows, job_id, **KEY)
    assert response.status in (200, 202)
    assert response.json()["success"] is True
    assert response.header("idempotency-replayed") == "true"
    assert await event_types(workflows, job_id) == before
    assert (await act(workflows, job_id, **KEY)).body == response.body


@pytest.mark.parametrize("act", ACTIONS, ids=name_of)
async def test_a_response_that_cannot_be_stored_is_still_sent(
    fake_workflows: Workflows, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await ready(fake_workflows)

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(fake_workflows.store, "store_answer", away)
    assert (await act(fake_workflows, job_id, **KEY)).status in (200, 202)


async def test_another_request_with_the_same_key_is_rejected(workflows: Workflows) -> None:
    job_id = await ready(workflows)
    await bulk(workflows, job_id, **KEY)
    body = {"action": "approve", "proposal_ids": [3]}
    answer = await workflows.post(f"/{job_id}/proposals/bulk", body, **KEY)
    check_envelope(answer, 422, "idempotency_key_reused")
    assert await statuses(workflows, job_id) == ["approved", "rejected", "proposed"]
    # For another route it is another key.
    assert (await edit(workflows, job_id, **KEY)).status in (200, 409)
    assert (await cancel(workflows, job_id, **KEY)).status == 200


async def test_the_timeout_is_not_part_of_the_request(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    first = await execute(workflows, job_id, "sources", **KEY)
    repeated = await execute(workflows, job_id, "sources", {"wait_s": 0.01}, **KEY)
    assert (repeated.status, repeated.body) == (202, first.body)


async def test_the_key_may_be_in_the_body(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    first = await execute(workflows, job_id, "sources", {"idempotency_key": "k"})
    repeated = await execute(workflows, job_id, "sources", idempotency_key="k")
    assert repeated.body == first.body
    both = {"idempotency_key": "other"}
    answer = await execute(workflows, job_id, "sources", both, idempotency_key="k")
    check_envelope(answer, 400, "idempotency_key_mismatch")
    answer = await execute(workflows, job_id, "sources", idempotency_key="é")
    check_envelope(answer, 400, "invalid_idempotency_key")
    assert len(await queued(workflows)) == 1


# -- executions ------------------------------------------------------------------------------


async def test_a_repetition_is_rejected_while_the_first_one_waits(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = begin(workflows, execute_path(job_id, "sources"), {"wait_s": 30}, **KEY)
    await eventually(lambda: workflows.gateway.hub._topics)
    response = await execute(workflows, job_id, "sources", {"wait_s": 30}, **KEY)
    check_envelope(response, 409, "request_in_progress")
    await work(workflows, job_id)
    first = await request.answer()
    repeated = await execute(workflows, job_id, "sources", **KEY)
    assert (repeated.status, repeated.body) == (200, first.body)


async def test_a_stored_202_becomes_the_result(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    assert (await execute(workflows, job_id, "sources", **KEY)).status == 202
    what = await running(workflows, job_id)
    await work(workflows, job_id)
    repeated = await execute(workflows, job_id, "sources", **KEY)
    body = repeated.json()
    assert (repeated.status, repeated.header("idempotency-replayed")) == (200, "true")
    assert (body["execution_id"], len(body["result"]["items"])) == (what.execution, 2)
    assert repeated.header("location") is None
    # Later executions do not change it.
    await workflows.run(job_id, "sources")
    assert (await execute(workflows, job_id, "sources", **KEY)).body == repeated.body


async def test_a_stored_202_becomes_the_failure(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "proposals", **KEY)
    await fail(workflows, job_id)
    repeated = await execute(workflows, job_id, "proposals", **KEY)
    assert (repeated.status, repeated.json()["success"]) == (200, False)
    assert len(await queued(workflows)) == 1  # nothing was executed again


async def test_a_superseded_execution_is_reported_as_lost(workflows: Workflows) -> None:
    """The items of the newer execution are not returned."""
    job_id = await workflows.create_job()
    first = (await execute(workflows, job_id, "sources", **KEY)).json()
    await work(workflows, job_id)
    newer = await workflows.start(job_id, "sources")
    repeated = await execute(workflows, job_id, "sources", **KEY)
    body = repeated.json()
    assert (repeated.status, body["success"], body["result"]["items"]) == (200, False, [])
    assert body["execution_id"] == first["execution_id"]
    [error] = body["errors"]
    assert error["code"] == "step_lost"
    assert f"superseded by {newer.execution}" in error["message"]
    await workflows.complete(newer)
    assert (await execute(workflows, job_id, "sources", **KEY)).body == repeated.body


async def test_a_superseded_execution_without_response_is_lost(
    workflows: Workflows,
) -> None:
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources", **KEY)
    await work(workflows, job_id)
    await workflows.run(job_id, "sources")
    [answer] = await workflows.redis.keys("idempotency.wf:*k-17")
    await workflows.redis.hdel(answer, "status_code", "body")
    repeated = await execute(workflows, job_id, "sources", **KEY)
    assert repeated.json()["errors"][0]["code"] == "step_lost"


async def test_a_repeated_earlier_step_supersedes_the_execution(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.run(job_id, "sources")
    await execute(workflows, job_id, "index_extract", **KEY)
    await work(workflows, job_id)
    await workflows.run(job_id, "sources")
    repeated = await execute(workflows, job_id, "index_extract", **KEY)
    assert repeated.json()["errors"][0]["code"] == "step_lost"


async def test_the_response_of_an_edit_outlives_its_item(workflows: Workflows) -> None:
    job_id = await ready(workflows)
    first = await edit(workflows, job_id, **KEY)
    assert (await again(workflows, job_id)).status == 202
    assert await statuses(workflows, job_id) == []
    repeated = await edit(workflows, job_id, **KEY)
    assert (repeated.status, repeated.body) == (200, first.body)
    assert repeated.header("etag") == first.header("etag") == '"2"'
    check_envelope(await edit(workflows, job_id), 404, "item_not_found")
    body = {"to": "y", "version": 1}
    path = f"/{job_id}/proposals/1/ontology"
    other = await send(workflows, path, body, method="PATCH", **KEY)
    assert other.status in (404, 422)  # another request does not get the stored response


async def test_a_stored_202_of_a_review_becomes_its_result(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await workflows.until_proposals(job_id, 1)
    first = await execute(workflows, job_id, "review", **KEY)
    assert (await execute(workflows, job_id, "review", **KEY)).body == first.body
    await bulk(workflows, job_id)
    repeated = await execute(workflows, job_id, "review", **KEY)
    assert (repeated.status, repeated.json()["result"]["summary"]) == (
        200,
        "1 approved, 0 rejected",
    )


async def test_concurrent_requests_start_one_execution(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    answers = await asyncio.gather(
        *(execute(workflows, job_id, "sources", **KEY) for _ in range(20))
    )
    found = {answer.status for answer in answers}
    assert 202 in found
    assert found <= {202, 409}
    execution_ids = {answer.json()["execution_id"] for answer in answers if answer.status == 202}
    assert len(execution_ids) == 1
    for answer in answers:
        if answer.status == 409:
            check_envelope(answer, 409, "request_in_progress")
    assert len(await queued(workflows)) == 1
    assert (await event_types(workflows, job_id)).count("step.started") == 1


async def test_a_rejection_is_not_stored(workflows: Workflows) -> None:
    """Nothing was changed, so the request may be repeated."""
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources")
    refused = await execute(workflows, job_id, "index_extract", **KEY)
    check_envelope(refused, 409, "step_in_progress")
    await work(workflows, job_id)
    assert (await execute(workflows, job_id, "index_extract", **KEY)).status == 202


async def test_each_tenant_has_its_own_keys(workflows: Workflows) -> None:
    scopes = ("jobs:read", "jobs:write")
    one = await key_for(workflows.gateway, "a", scopes=scopes, tenant="a")
    job_id = await workflows.create_job(None, **bearer(one))
    with_key = bearer(one, **KEY)
    assert (await execute(workflows, job_id, "sources", **with_key)).status == 202
    response: Any = await execute(workflows, job_id, "sources", **KEY)  # an administrator's
    check_envelope(response, 409, "step_in_progress")
