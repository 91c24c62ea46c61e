"""`lane` of a job: its queue, its limit, and lanes that are not configured."""

from __future__ import annotations

import json

import pytest

from common.jobs.options import JobOptions
from common.settings.queue import parse_weights
from gateway.jobs.submit import tenant_lane
from tests.support.gateway.access import JSON, bearer, key_for
from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

BOTH = "high,low"


async def waiting(gateway: Gateway) -> dict[str, int]:
    """Number of messages in each lane."""
    lanes = ("normal", "high", "low")
    return {lane: await gateway.redis.xlen(gateway.keys.for_lane(lane).stream) for lane in lanes}


async def submit(gateway: Gateway, lane: object, **headers: str) -> Answer:
    body = json.dumps({**CHAT, "lane": lane}).encode()
    return await gateway.client.send("POST", "/v1/jobs", {**JSON, **headers}, body)


@partitioned
async def test_a_job_waits_in_its_lane(make: Make) -> None:
    gateway = make(lanes=BOTH)
    for lane in ("high", "low", "normal", None):
        job_id = await gateway.create({**CHAT, "lane": lane})
        keys = gateway.keys_of(job_id)
        stream = keys.for_lane(lane or "normal").stream
        entries = [fields[b"job_id"].decode() for _, fields in await gateway.redis.xrange(stream)]
        assert job_id in entries
        lease = await gateway.redis.hgetall(keys.lease(job_id))
        if lane in ("high", "low"):
            assert JobOptions.from_json(lease[b"options"]).lane == lane
        else:
            assert lease == {}
        assert (await gateway.client.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"


async def test_unknown_and_invalid_lanes_are_rejected(make: Make) -> None:
    for lanes, lane in (("", "high"), ("low", "high"), ("high", "low")):
        gateway = make(lanes=lanes)
        check_problem(await submit(gateway, lane), 422, "lane_not_configured")
        assert await waiting(gateway) == {"normal": 0, "high": 0, "low": 0}
    for odd in ("urgent", "HIGH", 1, ["high"]):
        check_problem(await submit(gateway, odd), 422, "invalid_request")


async def test_a_full_lane_does_not_block_other_lanes(make: Make) -> None:
    gateway = make(lanes=BOTH, backpressure_max_backlog=2)
    for lane in ("low", "low", "high", None):
        await gateway.create({**CHAT, "lane": lane})
    check_problem(await submit(gateway, "low"), 429, "queue_full")
    [queue] = (await gateway.client.get("/v1/queues")).json()["queues"]
    found = [(each["lane"], each["depth"]) for each in queue["lanes"]]
    assert found == [("high", 1), ("normal", 1), ("low", 2)]
    assert (queue["depth"], queue["pending"]) == (4, 0)
    [queue] = (await make().client.get("/v1/queues")).json()["queues"]
    assert "lanes" not in queue


async def test_the_lane_is_part_of_the_idempotent_request(make: Make) -> None:
    gateway = make(lanes=BOTH)
    key = {"idempotency-key": "k"}
    first = await submit(gateway, "high", **key)
    again = await submit(gateway, "high", **key)
    assert first.json() == again.json()
    other = await submit(gateway, "low", **key)
    check_problem(other, 422, "idempotency_key_reused")
    assert await waiting(gateway) == {"normal": 0, "high": 1, "low": 0}


async def test_due_and_redriven_jobs_keep_their_lane(make: Make) -> None:
    gateway = make(lanes=BOTH)
    job_id = await gateway.create({**CHAT, "lane": "high", "delay_s": 600})
    await gateway.redis.zadd(gateway.keys.scheduled, {job_id: 1})
    await gateway.state.queue.promote([job_id])
    fields = {"job_id": "j", "task": "chat", "payload": "{}"}
    options = JobOptions(lane="low").to_json()
    dead_letter = {"reason": "attempts_exhausted", "fields": json.dumps(fields), "options": options}
    dead_letter_id = (await gateway.redis.xadd(gateway.keys.dead_letters, dead_letter)).decode()
    answer = await gateway.client.send("POST", f"/v1/dlq/{dead_letter_id}/redrive")
    assert answer.status in (200, 202), answer.body
    assert await waiting(gateway) == {"normal": 0, "high": 1, "low": 1}


async def test_tenants_have_their_own_lanes_by_weight(make: Make) -> None:
    gateway = make(tenant_lanes=4, tenant_weights="acme:2")
    seen: dict[str, set[str]] = {}
    for tenant in ("acme", "beta"):
        seen[tenant] = {tenant_lane(gateway.state.settings, tenant) for _ in range(20)}
    assert (len(seen["acme"]), len(seen["beta"])) == (2, 1)
    plain = make()
    assert tenant_lane(plain.state.settings, "acme") == ""


async def test_a_tenants_backlog_does_not_block_other_tenants(make: Make) -> None:
    gateway = make(tenant_lanes=16, lanes="high", backpressure_max_backlog=3, auth="required")
    settings = gateway.state.settings
    first, second = "acme", "beta"
    assert tenant_lane(settings, first) != tenant_lane(settings, second)
    keys = {
        tenant: bearer(await key_for(gateway, tenant=tenant, scopes=["jobs:write"]))
        for tenant in (first, second)
    }
    answers = [await submit(gateway, None, **keys[first]) for _ in range(5)]
    assert [answer.status for answer in answers] == [202, 202, 202, 429, 429]
    other = await submit(gateway, None, **keys[second])
    assert other.status == 202
    urgent = await submit(gateway, "high", **keys[first])
    assert urgent.status == 202
    for tenant, number in ((first, 3), (second, 1)):
        stream = gateway.keys.for_lane(tenant_lane(settings, tenant)).stream
        assert await gateway.redis.xlen(stream) == number
    assert await waiting(gateway) == {"normal": 0, "high": 1, "low": 0}


def test_an_invalid_weight_is_rejected() -> None:
    for odd in ("acme", "acme:", ":2", "acme:0", "acme:17", "acme:x"):
        with pytest.raises(ValueError, match="weight"):
            parse_weights(odd)
