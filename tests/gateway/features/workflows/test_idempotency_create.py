"""Repeated requests with the same key create one job and get the same response."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from common.errors import StoreUnavailable
from tests.gateway.access_kit import bearer, key_for
from tests.gateway.conftest import Make
from tests.gateway.features.workflows.kit import KEYS, Workflows, check_envelope

BODY = {"metadata": {"order": 7}, "webhook_url": "https://example.com/hook"}


async def count(workflows: Workflows) -> int:
    number: int = await workflows.redis.zcard(KEYS.index())
    return number


async def test_a_repeated_request_gets_the_first_response(workflows: Workflows) -> None:
    first = await workflows.create(BODY, idempotency_key="k-1")
    job_id = first.json()["job"]["job_id"]
    assert first.json()["job"]["idempotency_key"] == "k-1"
    assert first.header("idempotency-replayed") is None
    await workflows.run(job_id, "sources")
    again = await workflows.create(BODY, idempotency_key="k-1")
    assert (again.status, again.body) == (200, first.body), (
        "unchanged, although the job has advanced"
    )
    assert again.header("idempotency-replayed") == "true"
    assert again.header("idempotent-replayed") == "true", "the earlier spelling"
    assert again.header("location") == first.header("location")
    assert await count(workflows) == 1
    assert await workflows.create_job() == f"{job_id[:-3]}002", "a repetition uses no number"


async def test_header_body_and_member_order_do_not_matter(workflows: Workflows) -> None:
    first = await workflows.create(BODY, idempotency_key="k")
    for body, headers in (
        ({**BODY, "idempotency_key": "k"}, {}),
        ({**BODY, "idempotency_key": "k"}, {"idempotency_key": "k"}),
        (dict(reversed(BODY.items())), {"idempotency_key": '"k"'}),
    ):
        assert (await workflows.create(body, **headers)).body == first.body
    assert await count(workflows) == 1


async def test_another_request_with_the_same_key_is_rejected(workflows: Workflows) -> None:
    await workflows.create(BODY, idempotency_key="k")
    answer = await workflows.create({**BODY, "auto_advance": True}, idempotency_key="k")
    check_envelope(answer, 422, "idempotency_key_reused")
    assert await count(workflows) == 1


async def test_two_keys_in_one_request_are_rejected(fake_workflows: Workflows) -> None:
    answer = await fake_workflows.create({"idempotency_key": "a"}, idempotency_key="b")
    check_envelope(answer, 400, "idempotency_key_mismatch", "idempotency_key")
    client = fake_workflows.gateway.client
    pairs = [("content-type", "application/json"), *[("idempotency-key", key) for key in "ab"]]
    answer = await client.send("POST", "/api/workflow/jobs", pairs, b"{}")
    check_envelope(answer, 400, "idempotency_key_mismatch")
    assert await count(fake_workflows) == 0


async def test_invalid_keys_are_rejected(fake_workflows: Workflows) -> None:
    for key in ("", "x" * 256, "é", '""'):
        answer = await fake_workflows.create({}, idempotency_key=key)
        check_envelope(answer, 400, "invalid_idempotency_key", "idempotency_key")
    assert await count(fake_workflows) == 0


async def test_unusual_valid_keys_are_accepted(fake_workflows: Workflows) -> None:
    for key in ("x", "x" * 255, "a:b:create", "two words", '"', "'~!"):
        first = await fake_workflows.create({"idempotency_key": key})
        assert first.status == 200
        assert (await fake_workflows.create({"idempotency_key": key})).body == first.body


async def test_without_a_key_each_request_is_new(workflows: Workflows) -> None:
    assert await workflows.create_job() != await workflows.create_job()
    assert await workflows.create_job({"idempotency_key": None}) is not None
    assert await count(workflows) == 3
    for key in await workflows.redis.keys("idempotency*"):
        assert 0 < await workflows.redis.ttl(key) <= 60


async def test_keys_are_kept_for_the_configured_time(make: Make) -> None:
    workflows = Workflows(make(workflow_idempotency_ttl_s=1000))
    await workflows.create(idempotency_key="k")
    assert 900 < await workflows.redis.ttl(KEYS.answer("create", "k")) <= 1000
    await workflows.redis.delete(KEYS.answer("create", "k"))
    assert (await workflows.create(idempotency_key="k")).header("idempotency-replayed") is None
    assert await count(workflows) == 2, "after the window the key is new"


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


async def test_concurrent_requests_create_one_job(workflows: Workflows) -> None:
    answers = await asyncio.gather(
        *(workflows.create(BODY, idempotency_key="k") for _ in range(20))
    )
    assert await count(workflows) == 1
    done = [answer for answer in answers if answer.status == 200]
    assert done
    assert len({answer.body for answer in done}) == 1
    for answer in answers:
        if answer.status != 200:
            check_envelope(answer, 409, "request_in_progress")
            assert answer.header("retry-after") == "1"
    assert (await workflows.create(BODY, idempotency_key="k")).body == done[0].body


async def test_a_lost_response_is_rebuilt(
    workflows: Workflows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the gateway died between creating the job and storing the response."""

    async def lost(*args: Any) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(workflows.store, "store_answer", lost)
        first = await workflows.create(BODY, idempotency_key="k")
    assert first.status == 200, "the job exists; a response that is not stored is no failure"
    check_envelope(await workflows.create(BODY, idempotency_key="k"), 409, "request_in_progress")
    await workflows.redis.hset(KEYS.answer("create", "k"), "claimed_until_ms", "1")
    again = await workflows.create(BODY, idempotency_key="k")
    assert (again.status, again.body) == (200, first.body)
    assert again.header("idempotency-replayed") == "true"
    await workflows.run(first.json()["job"]["job_id"], "sources")
    assert (await workflows.create(BODY, idempotency_key="k")).body == first.body, "stored by now"


async def test_a_rejection_is_not_stored(make: Make) -> None:
    workflows = Workflows(make(backpressure_max_backlog=1))
    core = await workflows.gateway.create()
    body = {"auto_advance": True}
    check_envelope(await workflows.create(body, idempotency_key="k"), 429, "queue_full")
    assert await count(workflows) == 0
    await workflows.redis.delete("jobs:stream", f"job:{core}")
    assert (await workflows.create(body, idempotency_key="k")).status == 200


async def test_a_key_of_another_type_is_reported(fake_workflows: Workflows) -> None:
    await fake_workflows.redis.set(KEYS.answer("create", "k"), "x")
    check_envelope(await fake_workflows.create(idempotency_key="k"), 503, "store_corrupt")
