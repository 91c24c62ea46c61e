"""Repeated requests with the same key have one effect and get the same response."""

from __future__ import annotations

import asyncio
import json

import pytest

from sluice.common.errors import StoreUnavailable
from sluice.common.process.crashpoints import CrashPoint
from sluice.gateway.features.workflows import decide as deciding
from sluice.gateway.features.workflows import edit as editing
from sluice.gateway.features.workflows import execute as cancelling
from sluice.gateway.features.workflows import lookup
from tests.gateway.conftest import Crash, Died
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import Make
from tests.support.gateway.workflows import CHANGES, KEYS, Workflows, check_envelope, execute_path
from tests.support.worker.harness import eventually

pytestmark = pytest.mark.fakeredis_only

BODY = {"metadata": {"order": 7}, "webhook_url": "https://example.com/hook"}


async def test_a_repeated_request_gets_the_first_response(workflows: Workflows) -> None:
    answers = await asyncio.gather(
        *(workflows.create(BODY, idempotency_key="k-1") for _ in range(20))
    )
    for answer in answers:
        if answer.status != 200:
            check_envelope(answer, 409, "request_in_progress")
            assert answer.header("retry-after") == "1"
    [first] = {answer.body for answer in answers if answer.status == 200}
    job_id = json.loads(first)["job"]["job_id"]
    assert json.loads(first)["job"]["idempotency_key"] == "k-1"
    await workflows.run(job_id, "sources")
    for body, headers in (
        (BODY, {"idempotency_key": "k-1"}),
        ({**BODY, "idempotency_key": "k-1"}, {}),
        ({**BODY, "idempotency_key": "k-1"}, {"idempotency_key": "k-1"}),
        (dict(reversed(BODY.items())), {"idempotency_key": '"k-1"'}),
    ):
        again = await workflows.create(body, **headers)
        assert (again.status, again.body) == (200, first), "although the job has advanced"
        assert again.header("idempotency-replayed") == "true"
        assert again.header("idempotent-replayed") == "true", "the earlier spelling"
        assert again.header("location") == f"/api/workflow/jobs/{job_id}/status"
    answer = await workflows.create({**BODY, "auto_advance": True}, idempotency_key="k-1")
    check_envelope(answer, 422, "idempotency_key_reused")
    assert await workflows.redis.zcard(KEYS.index()) == 1
    created = [await workflows.create_job(body) for body in ({}, {}, {"idempotency_key": None})]
    numbers = [f"{job_id[:-3]}{number}" for number in ("002", "003", "004")]
    assert created == numbers, "a repetition uses no number; without a key each request is new"


async def test_two_keys_and_invalid_keys_are_rejected(workflows: Workflows) -> None:
    answer = await workflows.create({"idempotency_key": "a"}, idempotency_key="b")
    check_envelope(answer, 400, "idempotency_key_mismatch", "idempotency_key")
    client = workflows.gateway.client
    pairs = [("content-type", "application/json"), *[("idempotency-key", key) for key in "ab"]]
    answer = await client.send("POST", "/api/workflow/jobs", pairs, b"{}")
    check_envelope(answer, 400, "idempotency_key_mismatch")
    for key in ("", "x" * 256, "é", '""'):
        answer = await workflows.create({}, idempotency_key=key)
        check_envelope(answer, 400, "invalid_idempotency_key", "idempotency_key")
    assert await workflows.redis.zcard(KEYS.index()) == 0
    for key in ("x", "x" * 255, "a:b:create", "two words", '"', "'~!"):
        first = await workflows.create({"idempotency_key": key})
        assert first.status == 200
        assert (await workflows.create({"idempotency_key": key})).body == first.body
    await workflows.redis.set(KEYS.answer("create", "k"), "x")
    check_envelope(await workflows.create(idempotency_key="k"), 503, "store_corrupt")


async def test_keys_are_kept_for_the_configured_time(make: Make) -> None:
    workflows = Workflows(make(workflow_idempotency_ttl_s=1000))
    await workflows.create(idempotency_key="k")
    assert 900 < await workflows.redis.ttl(KEYS.answer("create", "k")) <= 1000
    await workflows.redis.delete(KEYS.answer("create", "k"))
    assert (await workflows.create(idempotency_key="k")).header("idempotency-replayed") is None
    assert await workflows.redis.zcard(KEYS.index()) == 2, "after the window the key is new"


async def test_each_tenant_has_its_own_keys(workflows: Workflows) -> None:
    gateway = workflows.gateway
    scopes = ("jobs:write", "jobs:read")
    a = bearer(await key_for(gateway, "a", scopes=scopes, tenant="own"), idempotency_key="k")
    b = bearer(await key_for(gateway, "b", scopes=scopes, tenant="other"), idempotency_key="k")
    job_ids = {
        await workflows.create_job(**headers) for headers in (a, b, {"idempotency_key": "k"})
    }
    assert len(job_ids) == 3
    assert await workflows.create_job(**a) in job_ids


async def test_a_lost_response_is_rebuilt(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the gateway died between creating the job and storing the response."""
    with monkeypatch.context() as patch:
        patch.setattr(workflows.store, "store_answer", raising(StoreUnavailable("gone")))
        first = await workflows.create(BODY, idempotency_key="k")
    assert first.status == 200, "the job exists; a response that is not stored is no failure"
    check_envelope(await workflows.create(BODY, idempotency_key="k"), 409, "request_in_progress")
    await workflows.redis.hset(KEYS.answer("create", "k"), "claimed_until_ms", "1")
    again = await workflows.create(BODY, idempotency_key="k")
    assert (again.status, again.body) == (200, first.body)
    assert again.header("idempotency-replayed") == "true"
    await workflows.run(first.json()["job"]["job_id"], "sources")
    assert (await workflows.create(BODY, idempotency_key="k")).body == first.body, "stored by now"


KEY = {"idempotency_key": "k-17"}


async def ready(workflows: Workflows) -> str:
    """A job with a decision on p_002, but none on p_001 and p_003."""
    job_id = await workflows.reviewing()
    body = {"action": "reject", "proposal_ids": [2]}
    assert (await workflows.post(f"/{job_id}/proposals/bulk", body)).status == 200
    return job_id


@pytest.mark.parametrize("name", CHANGES)
async def test_a_repeated_action_gets_the_same_response(workflows: Workflows, name: str) -> None:
    job_id = await ready(workflows)
    first = await workflows.change(job_id, name, **KEY)
    assert first.status in (200, 202)
    assert first.header("idempotency-replayed") is None
    before = await workflows.gateway.snapshot()
    repeated = await workflows.change(job_id, name, **KEY)
    assert (repeated.status, repeated.body) == (first.status, first.body)
    assert repeated.header("idempotency-replayed") == "true"
    assert repeated.header("location") == first.header("location")
    assert await workflows.gateway.snapshot() == before


@pytest.mark.parametrize("name", CHANGES)
async def test_after_a_crash_the_response_is_rebuilt(
    workflows: Workflows, name: str, crash_at: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway dies between the change and its response."""
    for module in (lookup, cancelling, deciding, editing):
        monkeypatch.setattr(module, "ANSWER_MARGIN_MS", 60_000)  # longer than a slow machine takes
    job_id = await ready(workflows)
    crash_at(CrashPoint.BEFORE_WORKFLOW_ANSWER)
    with pytest.raises(Died):
        await workflows.change(job_id, name, **KEY)
    before = await workflows.event_types(job_id)
    response = await workflows.change(job_id, name, **KEY)
    check_envelope(response, 409, "request_in_progress")  # the first request may still be running
    assert response.header("retry-after") == "1"
    [answer] = await workflows.redis.keys("idempotency.wf:*k-17")
    await workflows.redis.hset(answer, "claimed_until_ms", "1")
    response = await workflows.change(job_id, name, **KEY)
    assert response.status in (200, 202)
    assert response.json()["success"] is True
    assert response.header("idempotency-replayed") == "true"
    assert await workflows.event_types(job_id) == before
    assert (await workflows.change(job_id, name, **KEY)).body == response.body


async def test_a_response_that_cannot_be_stored_is_still_sent(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = raising(StoreUnavailable("away"))
    monkeypatch.setattr(workflows.store, "store_answer", away)
    for name in CHANGES:
        job_id = await ready(workflows)
        answer = await workflows.change(job_id, name, idempotency_key=name)
        assert answer.status in (200, 202), name


async def test_another_request_with_the_same_key_is_rejected(workflows: Workflows) -> None:
    job_id = await ready(workflows)
    await workflows.change(job_id, "bulk", **KEY)
    body = {"action": "approve", "proposal_ids": [3]}
    answer = await workflows.post(f"/{job_id}/proposals/bulk", body, **KEY)
    check_envelope(answer, 422, "idempotency_key_reused")
    assert await workflows.statuses(job_id) == ["approved", "rejected", "proposed"]
    # For another route it is another key.
    assert (await workflows.change(job_id, "edit", **KEY)).status in (200, 409)
    assert (await workflows.change(job_id, "cancel", **KEY)).status == 200


async def test_the_key_may_be_in_the_body(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    first = await workflows.execute(job_id, "sources", {"idempotency_key": "k"})
    repeated = await workflows.execute(job_id, "sources", idempotency_key="k")
    assert repeated.body == first.body
    both = {"idempotency_key": "other"}
    answer = await workflows.execute(job_id, "sources", both, idempotency_key="k")
    check_envelope(answer, 400, "idempotency_key_mismatch")
    answer = await workflows.execute(job_id, "sources", idempotency_key="é")
    check_envelope(answer, 400, "invalid_idempotency_key")
    assert len(await workflows.queued()) == 1


async def test_a_repetition_is_rejected_while_the_first_one_waits(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    request = workflows.begin(execute_path(job_id, "sources"), {"wait_s": 30}, **KEY)
    await eventually(lambda: workflows.gateway.hub._topics)
    response = await workflows.execute(job_id, "sources", {"wait_s": 30}, **KEY)
    check_envelope(response, 409, "request_in_progress")
    await workflows.work(job_id)
    first = await request.answer()
    repeated = await workflows.execute(job_id, "sources", **KEY)
    assert (repeated.status, repeated.body) == (200, first.body)


async def test_a_stored_202_becomes_the_result(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    first = await workflows.execute(job_id, "sources", **KEY)
    again = await workflows.execute(job_id, "sources", {"wait_s": 0.01}, **KEY)
    assert (first.status, again.body) == (202, first.body), "the timeout is not part of the request"
    what = await workflows.running(job_id)
    refused = await workflows.execute(job_id, "index_extract", idempotency_key="next")
    check_envelope(refused, 409, "step_in_progress")
    await workflows.work(job_id)
    repeated = await workflows.execute(job_id, "sources", **KEY)
    body = repeated.json()
    assert (repeated.status, repeated.header("idempotency-replayed")) == (200, "true")
    assert (body["execution_id"], len(body["result"]["items"])) == (what.execution, 2)
    assert repeated.header("location") is None
    # A rejection is not stored. Later executions do not change the stored result.
    answer = await workflows.execute(job_id, "index_extract", idempotency_key="next")
    assert answer.status == 202
    await workflows.fail(job_id)
    answer = await workflows.execute(job_id, "index_extract", idempotency_key="next")
    assert (answer.status, answer.json()["success"]) == (200, False)
    await workflows.run(job_id, "sources")
    assert (await workflows.execute(job_id, "sources", **KEY)).body == repeated.body


async def test_a_superseded_execution_is_reported_as_lost(workflows: Workflows) -> None:
    """The items of the newer execution are not returned."""
    job_id = await workflows.create_job()
    first = (await workflows.execute(job_id, "sources", **KEY)).json()
    await workflows.work(job_id)
    await workflows.execute(job_id, "index_extract", idempotency_key="later step")
    await workflows.work(job_id)
    newer = await workflows.start(job_id, "sources")
    repeated = await workflows.execute(job_id, "sources", **KEY)
    body = repeated.json()
    assert (repeated.status, body["success"], body["result"]["items"]) == (200, False, [])
    assert body["execution_id"] == first["execution_id"]
    [error] = body["errors"]
    assert error["code"] == "step_lost"
    assert f"superseded by {newer.execution}" in error["message"]
    await workflows.complete(newer)
    assert (await workflows.execute(job_id, "sources", **KEY)).body == repeated.body
    later = await workflows.execute(job_id, "index_extract", idempotency_key="later step")
    assert later.json()["errors"][0]["code"] == "step_lost"
    for answer in await workflows.redis.keys("idempotency.wf:*k-17"):
        await workflows.redis.hdel(answer, "status_code", "body")
    repeated = await workflows.execute(job_id, "sources", **KEY)
    assert repeated.json()["errors"][0]["code"] == "step_lost", "also without a stored response"


async def test_the_response_of_an_edit_outlives_its_item(workflows: Workflows) -> None:
    job_id = await ready(workflows)
    first = await workflows.change(job_id, "edit", **KEY)
    assert (await workflows.change(job_id, "execute")).status == 202
    assert await workflows.statuses(job_id) == []
    repeated = await workflows.change(job_id, "edit", **KEY)
    assert (repeated.status, repeated.body) == (200, first.body)
    assert repeated.header("etag") == first.header("etag") == '"2"'
    check_envelope(await workflows.change(job_id, "edit"), 404, "item_not_found")
    body = {"to": "y", "version": 1}
    path = f"/{job_id}/proposals/1/ontology"
    other = await workflows.send(path, body, method="PATCH", **KEY)
    assert other.status in (404, 422)  # another request does not get the stored response
