"""429 at the backlog limit: pending plus lag, on servers that report their lag and others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.jobs.backpressure import DrainRate
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem

GROUP, ME = "workers", "c1"


async def fill(gateway: Gateway, count: int) -> None:
    for _ in range(count):
        await gateway.create()


async def read(gateway: Gateway, count: int) -> list[bytes]:
    """A worker takes messages and does not ack them."""
    got: Any = await gateway.redis.xreadgroup(GROUP, ME, {gateway.keys.queue: ">"}, count=count)
    return [message_id for message_id, _ in got[0][1]]


async def check_full(gateway: Gateway, backlog: int) -> None:
    before = await gateway.snapshot()
    answer = await gateway.client.post(CHAT)
    problem = check_problem(answer, 429, "queue_full")
    assert problem["detail"].startswith(f"{backlog} jobs ")
    assert 1 <= int(answer.header("retry-after") or "") <= 360
    assert 1 <= int(answer.header("retry-after-ms") or "") <= 360_000
    assert await gateway.snapshot() == before


async def test_messages_count_before_the_group_exists(make: Make) -> None:
    gateway = make(backpressure_max_backlog=3)
    await fill(gateway, 3)
    await check_full(gateway, 3)


async def test_messages_that_were_not_read_count(make: Make) -> None:
    gateway = make(backpressure_max_backlog=3)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    await fill(gateway, 3)
    await check_full(gateway, 3)


async def test_pending_messages_count(make: Make) -> None:
    gateway = make(backpressure_max_backlog=3)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    await fill(gateway, 3)
    await read(gateway, 3)
    await check_full(gateway, 3)


async def test_pending_messages_and_lag_are_added(make: Make) -> None:
    gateway = make(backpressure_max_backlog=4)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    await fill(gateway, 4)
    await read(gateway, 2)
    await check_full(gateway, 4)


async def test_acknowledged_messages_do_not_count(make: Make) -> None:
    gateway = make(backpressure_max_backlog=3)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    for _ in range(5):
        await fill(gateway, 3)
        await check_full(gateway, 3)
        message_ids = await read(gateway, 3)
        await gateway.redis.xack(gateway.keys.queue, GROUP, *message_ids)
    assert await gateway.redis.xlen(gateway.keys.queue) == 15


async def test_one_acknowledgement_admits_one_job(make: Make) -> None:
    gateway = make(backpressure_max_backlog=3)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    await fill(gateway, 3)
    message_ids = await read(gateway, 2)
    await gateway.redis.xack(gateway.keys.queue, GROUP, message_ids[0])
    await fill(gateway, 1)
    await check_full(gateway, 3)


@pytest.mark.parametrize("deleted", [0, 1, 4, 5])
async def test_the_backlog_is_right_if_the_lag_is_unknown(make: Make, deleted: int) -> None:
    """XDEL makes Redis 7 answer nil for the lag; the count must still be right."""
    gateway = make(backpressure_max_backlog=5)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    await fill(gateway, 5)
    message_ids = await read(gateway, 2)
    await gateway.redis.xack(gateway.keys.queue, GROUP, *message_ids)
    await fill(gateway, 2)  # 2 done, 5 waiting
    entries = await gateway.redis.xrange(gateway.keys.queue)
    await gateway.redis.xdel(gateway.keys.queue, entries[deleted][0])
    waiting = 5 if deleted < 2 else 4
    await fill(gateway, 5 - waiting)
    await check_full(gateway, 5)


async def test_messages_before_the_start_of_the_group_do_not_count(make: Make) -> None:
    gateway = make(backpressure_max_backlog=2)
    await fill(gateway, 2)
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="$")
    await fill(gateway, 2)
    await check_full(gateway, 2)


async def test_only_the_configured_group_counts(make: Make) -> None:
    gateway = make(backpressure_max_backlog=2, worker_group="mine")
    await gateway.redis.xgroup_create(gateway.keys.queue, GROUP, id="0", mkstream=True)
    await gateway.redis.xgroup_create(gateway.keys.queue, "mine", id="0")
    await fill(gateway, 2)
    await check_full(gateway, 2)
    got: Any = await gateway.redis.xreadgroup("mine", ME, {gateway.keys.queue: ">"})
    await gateway.redis.xack(gateway.keys.queue, "mine", *[m for m, _ in got[0][1]])
    await fill(gateway, 2)


async def test_concurrent_requests_do_not_exceed_the_limit(make: Make) -> None:
    gateway = make(backpressure_max_backlog=7)
    answers = await asyncio.gather(*(gateway.client.post(CHAT) for _ in range(40)))
    assert sorted(answer.status for answer in answers) == [202] * 7 + [429] * 33
    assert await gateway.redis.xlen(gateway.keys.queue) == 7


async def test_a_queue_of_another_type_is_reported(gateway: Gateway) -> None:
    await gateway.redis.set(gateway.keys.queue, "x")
    before = await gateway.snapshot()
    check_problem(await gateway.client.post(CHAT), 503, "store_corrupt")
    assert await gateway.snapshot() == before


def test_retry_after_follows_the_drain_rate() -> None:
    rate = DrainRate(None)  # type: ignore[arg-type]
    assert 4 <= rate.retry_after_s(200, 200) <= 6  # nothing known
    for second in range(60):
        rate.sample(float(second), 10 * second)
    assert 8 <= rate.retry_after_s(299, 200) <= 12  # 100 too many at ten a second
    assert 0.8 <= rate.retry_after_s(200, 200) <= 1.2
    assert rate.retry_after_s(10**9, 200) <= 360
    rate.sample(61.0, 0)  # FLUSHALL
    assert rate.retry_after_s(200, 200) > 0
    for second in range(62, 200):
        rate.sample(float(second), 0)
    assert 4 <= rate.retry_after_s(200, 200) <= 6  # no job ends any more


async def test_the_drain_rate_is_read_from_the_counter(fake_gateway: Gateway) -> None:
    await fake_gateway.redis.hset(fake_gateway.keys.counts, "done", "no number")
    await fake_gateway.state.drain_rate.run_once()
    await fake_gateway.redis.hset(fake_gateway.keys.counts, "done", "12")
    await fake_gateway.state.drain_rate.run_once()
    assert fake_gateway.state.drain_rate.retry_after_s(1, 1) <= 1.2
