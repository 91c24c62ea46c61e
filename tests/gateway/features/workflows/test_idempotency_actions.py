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
from tests.gateway.features.workflows.acting import (
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
    """A job of which p_002 was decided on, and p_001 and p_003 were not."""
    job_id = await reviewing(workflows)
    body = {"action": "reject", "proposal_ids": [2]}
    assert (await workflows.post(f"/{job_id}/proposals/bulk", body)).status == 200
    return job_id


async def everything(workflows: Workflows) -> dict[bytes, Any]:
    """Every key with its value; of a hash that Redis is about to reorder, by its fields."""
    found = await workflows.gateway.snapshot()
    for key in [key for key in found if key.startswith(b"idempotency.")]:
        found[key] = await workflows.redis.hgetall(key)
    return found


@pytest.mark.parametrize("act", ACTIONS, ids=name_of)
async def test_a_repetition_gets_the_same_answer(workflows: Workflows, act: Act) -> None:
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
async def test_the_answer_was_lost(
    workflows: Workflows, act: Act, crash_at: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway dies between the change and its answer."""
    for module in (lookup, cancelling, deciding, editing):
        monkeypatch.setattr(module, "ANSWER_MARGIN_MS", 60_000)  # longer than a slow machine takes
    job_id = await ready(workflows)
    crash_at(CrashPoint.BEFORE_WORKFLOW_ANSWER)
    with pytest.raises(Died):
        await act(workflows, job_id, **KEY)
    before = await event_types(workflows, job_id)
    told = await act(workflows, job_id, **KEY)
    check_envelope(told, 409, "request_in_progress")  # it might still be on its way
    assert told.header("retry-after") == "1"
    [answer] = await workflows.redis.keys("idempotency.wf:*k-17")
    await workflows.redis.hset(answer, "claimed_until_ms", "1")
    told = await act(workflows, job_id, **KEY)
    assert told.status in (200, 202)
    assert told.json()["success"] is True
    assert told.header("idempotency-replayed") == "true"
    assert await event_types(workflows, job_id) == before
    assert (await act(workflows, job_id, **KEY)).body == told.body


@pytest.mark.parametrize("act", ACTIONS, ids=name_of)
async def test_answers_that_cannot_be_kept(
    fake_workflows: Workflows, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await ready(fake_workflows)

    async def away(*_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(fake_workflows.store, "store_answer", away)
    assert (await act(fake_workflows, job_id, **KEY)).status in (200, 202)


async def test_another_request_under_the_same_key(workflows: Workflows) -> None:
    job_id = await ready(workflows)
    await bulk(workflows, job_id, **KEY)
    body = {"action": "approve", "proposal_ids": [3]}
    answer = await workflows.post(f"/{job_id}/proposals/bulk", body, **KEY)
    check_envelope(answer, 422, "idempotency_key_reused")
    assert await statuses(workflows, job_id) == ["approved", "rejected", "proposed"]
    # Elsewhere it is another key.
    assert (await edit(workflows, job_id, **KEY)).status in (200, 409)
    assert (await cancel(workflows, job_id, **KEY)).status == 200


async def test_how_long_to_wait_makes_no_other_request(workflows: Workflows) -> None:
    job_id = await workflows.made()
    first = await execute(workflows, job_id, "sources", **KEY)
    repeated = await execute(workflows, job_id, "sources", {"wait_s": 0.01}, **KEY)
    assert (repeated.status, repeated.body) == (202, first.body)


async def test_the_key_in_the_body(workflows: Workflows) -> None:
    job_id = await workflows.made()
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


async def test_the_first_request_still_waits(workflows: Workflows) -> None:
    job_id = await workflows.made()
    asked = begin(workflows, execute_path(job_id, "sources"), {"wait_s": 30}, **KEY)
    await eventually(lambda: workflows.gateway.hub._topics)
    told = await execute(workflows, job_id, "sources", {"wait_s": 30}, **KEY)
    check_envelope(told, 409, "request_in_progress")
    await work(workflows, job_id)
    first = await asked.answer()
    repeated = await execute(workflows, job_id, "sources", **KEY)
    assert (repeated.status, repeated.body) == (200, first.body)


async def test_a_kept_202_becomes_the_result(workflows: Workflows) -> None:
    job_id = await workflows.made()
    assert (await execute(workflows, job_id, "sources", **KEY)).status == 202
    what = await running(workflows, job_id)
    await work(workflows, job_id)
    repeated = await execute(workflows, job_id, "sources", **KEY)
    body = repeated.json()
    assert (repeated.status, repeated.header("idempotency-replayed")) == (200, "true")
    assert (body["execution_id"], len(body["result"]["items"])) == (what.execution, 2)
    assert repeated.header("location") is None
    # And stays what it was, whatever comes.
    await workflows.run(job_id, "sources")
    assert (await execute(workflows, job_id, "sources", **KEY)).body == repeated.body


async def test_a_kept_202_becomes_the_failure(workflows: Workflows) -> None:
    job_id = await workflows.made()
    await execute(workflows, job_id, "proposals", **KEY)
    await fail(workflows, job_id)
    repeated = await execute(workflows, job_id, "proposals", **KEY)
    assert (repeated.status, repeated.json()["success"]) == (200, False)
    assert len(await queued(workflows)) == 1  # nothing was executed again


async def test_an_execution_that_does_not_count_any_more(workflows: Workflows) -> None:
    """What another one found is not its result."""
    job_id = await workflows.made()
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


async def test_an_execution_whose_answer_was_lost_and_that_does_not_count_any_more(
    workflows: Workflows,
) -> None:
    job_id = await workflows.made()
    await execute(workflows, job_id, "sources", **KEY)
    await work(workflows, job_id)
    await workflows.run(job_id, "sources")
    [answer] = await workflows.redis.keys("idempotency.wf:*k-17")
    await workflows.redis.hdel(answer, "status_code", "body")
    repeated = await execute(workflows, job_id, "sources", **KEY)
    assert repeated.json()["errors"][0]["code"] == "step_lost"


async def test_an_earlier_step_was_executed_again(workflows: Workflows) -> None:
    job_id = await workflows.made()
    await workflows.run(job_id, "sources")
    await execute(workflows, job_id, "index_extract", **KEY)
    await work(workflows, job_id)
    await workflows.run(job_id, "sources")
    repeated = await execute(workflows, job_id, "index_extract", **KEY)
    assert repeated.json()["errors"][0]["code"] == "step_lost"


async def test_an_edit_of_what_has_gone_since(workflows: Workflows) -> None:
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
    assert other.status in (404, 422)  # another request is not answered with it


async def test_a_kept_202_of_a_review_that_waits(workflows: Workflows) -> None:
    job_id = await workflows.made()
    await workflows.until_proposals(job_id, 1)
    first = await execute(workflows, job_id, "review", **KEY)
    assert (await execute(workflows, job_id, "review", **KEY)).body == first.body
    await bulk(workflows, job_id)
    repeated = await execute(workflows, job_id, "review", **KEY)
    assert (repeated.status, repeated.json()["result"]["summary"]) == (
        200,
        "1 approved, 0 rejected",
    )


async def test_many_at_once_start_one(workflows: Workflows) -> None:
    job_id = await workflows.made()
    answers = await asyncio.gather(
        *(execute(workflows, job_id, "sources", **KEY) for _ in range(20))
    )
    found = {answer.status for answer in answers}
    assert 202 in found
    assert found <= {202, 409}
    told = {answer.json()["execution_id"] for answer in answers if answer.status == 202}
    assert len(told) == 1
    for answer in answers:
        if answer.status == 409:
            check_envelope(answer, 409, "request_in_progress")
    assert len(await queued(workflows)) == 1
    assert (await event_types(workflows, job_id)).count("step.started") == 1


async def test_a_refusal_is_not_kept(workflows: Workflows) -> None:
    """Nothing was done, so it may be tried again."""
    job_id = await workflows.made()
    await execute(workflows, job_id, "sources")
    refused = await execute(workflows, job_id, "index_extract", **KEY)
    check_envelope(refused, 409, "step_in_progress")
    await work(workflows, job_id)
    assert (await execute(workflows, job_id, "index_extract", **KEY)).status == 202


async def test_tenants_have_keys_of_their_own(workflows: Workflows) -> None:
    scopes = ("jobs:read", "jobs:write")
    one = await key_for(workflows.gateway, "a", scopes=scopes, tenant="a")
    job_id = await workflows.made(None, **bearer(one))
    with_key = bearer(one, **KEY)
    assert (await execute(workflows, job_id, "sources", **with_key)).status == 202
    told: Any = await execute(workflows, job_id, "sources", **KEY)  # an administrator's
    check_envelope(told, 409, "step_in_progress")
