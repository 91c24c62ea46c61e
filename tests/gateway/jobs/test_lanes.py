"""`lane` of a job: its queue, its limit, and lanes that are not configured."""

from __future__ import annotations

import json

import pytest

from common.jobs.options import JobOptions
from common.settings.queue import parse_weights
from gateway.jobs.submit import tenant_lane
from tests.gateway.access_kit import JSON, bearer, key_for
from tests.gateway.asgi import Answer
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem

BOTH = "high,low"


async def waiting(gateway: Gateway) -> dict[str, int]:
    """Number of messages in each lane."""
    lanes = ("normal", "high", "low")
    return {lane: await gateway.redis.xlen(gateway.keys.for_lane(lane).stream) for lane in lanes}


async def submit(gateway: Gateway, lane: object, **headers: str) -> Answer:
    body = json.dumps({**CHAT, "lane": lane}).encode()
    return await gateway.client.send("POST", "/v1/jobs", {**JSON, **headers}, body)


@pytest.mark.parametrize("lane", ["high", "low", "normal", None])
async def test_a_job_waits_in_its_lane(make: Make, lane: str | None) -> None:
    gateway = make(lanes=BOTH)
    job_id = await gateway.create({**CHAT, "lane": lane})
    expected = {"normal": 0, "high": 0, "low": 0, lane or "normal": 1}
    assert await waiting(gateway) == expected
    lease = await gateway.redis.hgetall(gateway.keys.lease(job_id))
    if lane in ("high", "low"):
        assert JobOptions.from_json(lease[b"options"]).lane == lane
    else:
        assert lease == {}
    assert (await gateway.client.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"


async def test_each_partition_has_its_own_lanes(make: Make) -> None:
    gateway = make(lanes="high", queue_partitions=4)
    partitions = gateway.state.settings.partitions
    for _ in range(8):
        job_id = await gateway.create({**CHAT, "lane": "high"})
        stream = partitions.keys_for_job(job_id).for_lane("high").stream
        ids = [fields[b"job_id"].decode() for _, fields in await gateway.redis.xrange(stream)]
        assert job_id in ids


@pytest.mark.parametrize(("lanes", "lane"), [("", "high"), ("low", "high"), ("high", "low")])
async def test_a_lane_that_is_not_configured_is_rejected(
    fake_make: Make, lanes: str, lane: str
) -> None:
    gateway = fake_make(lanes=lanes)
    answer = await submit(gateway, lane)
    check_problem(answer, 422, "lane_not_configured")
    assert await waiting(gateway) == {"normal": 0, "high": 0, "low": 0}


async def test_an_invalid_lane_is_rejected(fake_make: Make) -> None:
    gateway = fake_make(lanes=BOTH)
    for odd in ("urgent", "HIGH", 1, ["high"]):
        answer = await submit(gateway, odd)
        check_problem(answer, 422, "invalid_request")


async def test_a_full_lane_does_not_block_other_lanes(make: Make) -> None:
    gateway = make(lanes=BOTH, backpressure_max_backlog=2)
    for _ in range(2):
        await gateway.create({**CHAT, "lane": "low"})
    full = await submit(gateway, "low")
    check_problem(full, 429, "queue_full")
    await gateway.create({**CHAT, "lane": "high"})
    await gateway.create()
    assert await waiting(gateway) == {"normal": 1, "high": 1, "low": 2}


async def test_the_queue_list_shows_each_lane(make: Make) -> None:
    gateway = make(lanes=BOTH)
    for lane in ("low", "low", "high", None):
        await gateway.create({**CHAT, "lane": lane})
    [queue] = (await gateway.client.get("/v1/queues")).json()["queues"]
    assert [(each["lane"], each["depth"]) for each in queue["lanes"]] == [
        ("high", 1),
        ("normal", 1),
        ("low", 2),
    ]
    assert (queue["depth"], queue["pending"]) == (4, 0)
    plain = make()
    [queue] = (await plain.client.get("/v1/queues")).json()["queues"]
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


async def test_a_due_job_is_added_to_its_lane(make: Make) -> None:
    gateway = make(lanes=BOTH)
    job_id = await gateway.create({**CHAT, "lane": "high", "delay_s": 600})
    await gateway.redis.zadd(gateway.keys.scheduled, {job_id: 1})
    await gateway.state.queue.promote([job_id])
    assert await waiting(gateway) == {"normal": 0, "high": 1, "low": 0}


async def test_a_redriven_job_keeps_its_lane(make: Make) -> None:
    gateway = make(lanes=BOTH)
    fields = {"job_id": "j", "task": "chat", "payload": "{}"}
    options = JobOptions(lane="low").to_json()
    dead_letter = {"reason": "attempts_exhausted", "fields": json.dumps(fields), "options": options}
    dead_letter_id = (await gateway.redis.xadd(gateway.keys.dead_letters, dead_letter)).decode()
    answer = await gateway.client.send("POST", f"/v1/dlq/{dead_letter_id}/redrive")
    assert answer.status in (200, 202), answer.body
    assert await waiting(gateway) == {"normal": 0, "high": 0, "low": 1}


TENANTS = {"auth": "required"}


async def test_tenants_have_their_own_lanes_by_weight(fake_make: Make) -> None:
    gateway = fake_make(tenant_lanes=4, tenant_weights="acme:2")
    seen: dict[str, set[str]] = {}
    for tenant in ("acme", "beta"):
        seen[tenant] = {tenant_lane(gateway.state.settings, tenant) for _ in range(20)}
    assert (len(seen["acme"]), len(seen["beta"])) == (2, 1)
    plain = fake_make()
    assert tenant_lane(plain.state.settings, "acme") == ""


async def test_a_tenants_backlog_does_not_block_other_tenants(make: Make) -> None:
    gateway = make(tenant_lanes=16, lanes="high", backpressure_max_backlog=3, **TENANTS)
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


@pytest.mark.parametrize("odd", ["acme", "acme:", ":2", "acme:0", "acme:17", "acme:x"])
def test_an_invalid_weight_is_rejected(odd: str) -> None:
    with pytest.raises(ValueError, match="weight"):
        parse_weights(odd)
