"""Jobs that wait: in the lane of their request or tenant, or until they are due."""

from __future__ import annotations

import datetime
import json

import pytest

from sluice.common.jobs.options import JobOptions
from sluice.common.jobs.queue import Promoter
from sluice.common.settings.queue import parse_weights
from sluice.gateway.jobs.submit import tenant_lane
from tests.support.gateway.access import bearer, key_for
from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, partitioned

pytestmark = pytest.mark.fakeredis_only

BOTH = "high,low"
LATER = {**CHAT, "delay_s": 60}


async def waiting(gateway: Gateway) -> dict[str, int]:
    """Number of messages in each lane."""
    lanes = ("normal", "high", "low")
    return {lane: await gateway.redis.xlen(gateway.keys.for_lane(lane).stream) for lane in lanes}


async def submit(gateway: Gateway, lane: object, **headers: str) -> Answer:
    return await gateway.client.post({**CHAT, "lane": lane}, headers)


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


def moment(seconds: float) -> str:
    """The time `seconds` from now."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return (now + datetime.timedelta(seconds=seconds)).isoformat()


async def now_ms(gateway: Gateway) -> int:
    seconds, micros = await gateway.redis.time()
    return int(seconds * 1000 + micros // 1000)


async def make_due(gateway: Gateway, *job_ids: str) -> None:
    await gateway.redis.zadd(gateway.keys.scheduled, dict.fromkeys(job_ids, 1))


async def types(gateway: Gateway, job_id: str) -> list[str]:
    entries = await gateway.redis.xrange(gateway.keys.events(job_id))
    return [fields[b"type"].decode() for _, fields in entries]


async def test_a_delayed_job_is_complete_but_not_on_the_queue(gateway: Gateway) -> None:
    redis, keys = gateway.redis, gateway.keys
    month_s = 30 * 24 * 3600
    delays = [("delay_s", seconds) for seconds in (90.5, 1e-9, month_s)]
    for member, seconds in (*delays, ("run_at", 5), ("run_at", 3600), ("run_at", month_s - 5)):
        before_ms = await now_ms(gateway)
        when = moment(seconds) if member == "run_at" else seconds
        answer = await gateway.client.post({**CHAT, member: when, "ttl_s": 600})
        after_ms = await now_ms(gateway)
        assert answer.status == 202
        job_id = answer.json()["job_id"]
        assert answer.json() == {"job_id": job_id}
        assert answer.header("location") == f"/v1/jobs/{job_id}"
        due_ms = await redis.zscore(keys.scheduled, job_id)
        assert due_ms is not None
        assert before_ms - 1 <= due_ms - seconds * 1000 <= after_ms + 1
        assert await types(gateway, job_id) == ["queued", "scheduled"]
        assert seconds + 570 < await redis.ttl(keys.job(job_id)) <= seconds + 602
    assert not await redis.exists(keys.queue)
    answer = await gateway.client.post({**CHAT, "run_at": moment(month_s + 60)})
    check_problem(answer, 422, "invalid_request")


async def test_no_delay_and_a_past_time_mean_now(gateway: Gateway) -> None:
    for when in (
        {"delay_s": 0},
        {"delay_s": 0.0},
        {"delay_s": -0.0},
        {"run_at": "2020-01-01T00:00:00Z"},
        {"run_at": "0001-01-01T00:00:00+23:59"},
        {"run_at": "1969-12-31 23:59:59.999-08:00"},
    ):
        job_id = await gateway.create({**CHAT, **when})
        [(_, message)] = await gateway.redis.xrevrange(gateway.keys.queue, count=1)
        assert message[b"job_id"].decode() == job_id
        assert await types(gateway, job_id) == ["queued"]
        assert not await gateway.redis.exists(gateway.keys.scheduled)


async def check_schedule_full(gateway: Gateway, waiting: int) -> int:
    before = await gateway.snapshot()
    answer = await gateway.client.post(LATER, {"idempotency-key": "new"})
    problem = check_problem(answer, 429, "schedule_full")
    assert problem["detail"].startswith(f"{waiting} jobs ")
    assert await gateway.snapshot() == before
    assert int(answer.header("retry-after-ms") or "") >= 1
    return int(answer.header("retry-after") or "")


async def test_a_full_schedule_rejects_delayed_jobs(make: Make) -> None:
    gateway = make(max_scheduled=2, backpressure_max_backlog=1)
    await gateway.create()
    first = await gateway.client.post(LATER, {"idempotency-key": "k"})  # the full queue is no limit
    await gateway.create({**CHAT, "run_at": moment(3600)})
    assert 40 <= await check_schedule_full(gateway, 2) <= 80  # when the first one is due
    again = await gateway.client.post(LATER, {"idempotency-key": "k"})
    assert (again.status, again.body) == (202, first.body)
    await make_due(gateway, first.json()["job_id"])
    assert await check_schedule_full(gateway, 2) <= 6
    await Promoter(gateway.state.queue).run_once()
    await gateway.create(LATER)
    await gateway.redis.flushall()
    without = make(max_scheduled=0)
    await check_schedule_full(without, 0)
    await without.create({**CHAT, "max_attempts": 3})
