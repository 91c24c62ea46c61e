"""`delay_s` and `run_at`: accepted now, put on the queue once when due."""

from __future__ import annotations

import datetime

import pytest

from common.jobs.queue import Promoter
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem

pytestmark = pytest.mark.fakeredis_only

LATER = {**CHAT, "delay_s": 60}


def moment(seconds: float) -> str:
    """The time `seconds` from now."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return (now + datetime.timedelta(seconds=seconds)).isoformat()


async def now_ms(gateway: Gateway) -> int:
    seconds, micros = await gateway.redis.time()
    return int(seconds * 1000 + micros // 1000)


async def make_due(gateway: Gateway, *job_ids: str) -> None:
    await gateway.redis.zadd(gateway.keys.scheduled, dict.fromkeys(job_ids, 1))


async def queued(gateway: Gateway) -> list[str]:
    entries = await gateway.redis.xrange(gateway.keys.queue)
    return [fields[b"job_id"].decode() for _, fields in entries]


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


async def test_a_key_lives_at_least_as_long_as_a_delayed_job(make: Make) -> None:
    gateway = make(idempotency_ttl_s=5)
    job_id = await gateway.create({**LATER, "delay_s": 60.2, "ttl_s": 600}, idempotency_key="k")
    assert 655 < await gateway.redis.ttl("idempotency:k") <= 661
    assert await gateway.redis.pttl("idempotency:k") >= await gateway.redis.pttl(f"job:{job_id}")


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
        assert (await queued(gateway))[-1] == job_id
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
