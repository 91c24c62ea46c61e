"""Cancelling a workflow job: it ends at once, with its running steps."""

from __future__ import annotations

import json

from tests.gateway.access_kit import bearer, key_for
from tests.gateway.features.workflows.actions import event_types, execute, reviewing, running
from tests.gateway.features.workflows.kit import Workflows, check_envelope


async def test_canceling_ends_the_running_step(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources")
    entries = await workflows.redis.xrange(workflows.gateway.keys.queue)
    core_id = entries[0][1][b"job_id"].decode()
    answer = await workflows.post(f"/{job_id}/cancel", {"reason": "not needed"})
    body = answer.json()
    assert answer.status == 200
    assert list(body) == ["success", "job_id", "job"]
    assert (body["success"], body["job_id"]) == (True, job_id)
    assert (body["job"]["status"], body["job"]["stepper"][0]["status"]) == (
        "cancelled",
        "cancelled",
    )
    assert body["job"]["completed_at"]
    core = (await workflows.gateway.client.get(f"/v1/jobs/{core_id}")).json()
    assert core["status"] == "canceled"
    assert (await event_types(workflows, job_id))[-1] == "job.cancelled"
    [event] = await workflows.redis.xrevrange(f"workflow:job:{job_id}:events", count=1)
    assert json.loads(event[1][b"data"])["reason"] == "not needed"


async def test_canceling_again_changes_nothing(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    first = await workflows.post(f"/{job_id}/cancel")
    before = await event_types(workflows, job_id)
    again = await workflows.post(f"/{job_id}/cancel", {"reason": "other"})
    assert (again.status, again.json()) == (200, first.json())
    assert await event_types(workflows, job_id) == before


async def test_canceling_ends_a_waiting_review(workflows: Workflows) -> None:
    job_id = await reviewing(workflows)
    assert (await workflows.post(f"/{job_id}/cancel")).status == 200
    assert await workflows.redis.zcard("workflow:reviews") == 0


async def test_a_job_that_has_ended_is_not_canceled(workflows: Workflows) -> None:
    job_id = await workflows.create_job()
    await execute(workflows, job_id, "sources")
    await workflows.store.fail(await running(workflows, job_id), b"[]")
    check_envelope(await workflows.post(f"/{job_id}/cancel"), 409, "job_terminal")


async def test_invalid_requests_are_rejected(fake_workflows: Workflows) -> None:
    job_id = await fake_workflows.create_job()
    for body in ({"reason": 1}, {"reason": "x" * 501}, {"why": "x"}, []):
        check_envelope(await fake_workflows.post(f"/{job_id}/cancel", body), 422)
    check_envelope(await fake_workflows.post("/wf_20200101_001/cancel"), 404, "job_not_found")
    assert (await fake_workflows.status(job_id))["status"] == "queued"


async def test_a_job_of_another_tenant_is_not_found(workflows: Workflows) -> None:
    own_key = await key_for(workflows.gateway, "a", scopes=("jobs:read", "jobs:write"), tenant="a")
    other_key = await key_for(workflows.gateway, "b", scopes=("jobs:write",), tenant="b")
    job_id = await workflows.create_job(None, **bearer(own_key))
    denied = await workflows.post(f"/{job_id}/cancel", **bearer(other_key))
    check_envelope(denied, 404, "job_not_found")
    admin = await key_for(workflows.gateway, "admin", scopes=("admin",))
    assert (await workflows.post(f"/{job_id}/cancel", **bearer(admin))).status == 200
    audit_log = await workflows.redis.xrange("access:trail")
    assert job_id.encode() in b"".join(b"".join(fields.values()) for _, fields in audit_log)
