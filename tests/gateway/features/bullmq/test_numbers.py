"""Metrics of BullMQ queues."""

from __future__ import annotations

from tests.gateway.conftest import Gateway, Make
from tests.gateway.features.bullmq.kit import Door


async def scrape(gateway: Gateway) -> dict[str, float]:
    text = (await gateway.client.get("/metrics")).body.decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("gw_bullmq"))
    return {name: float(value) for name, value in pairs}


async def test_by_queue_and_what_became_of_them(door: Door) -> None:
    await door.add()
    await door.add({"priority": 1, "jobId": "mine"})
    await door.add({"priority": 1, "jobId": "mine"})
    await door.add({"delay": 60_000})
    await (await door.watch()).event("hello")
    numbers = await scrape(door.gateway)
    added = 'gw_bullmq_jobs_total{outcome="%s",queue="video"}'
    assert numbers[added % "created"] == 3
    assert numbers[added % "duplicate"] == 1
    assert numbers[added % "full"] == 0
    depth = 'gw_bullmq_queue_jobs{queue="video",state="%s"}'
    assert [numbers[depth % state] for state in ("wait", "prioritized", "delayed", "failed")] == [
        *(1, 1, 1, 0)
    ]
    assert numbers["gw_bullmq_sse_clients"] == 1


async def test_a_place_of_another_type_is_left_out(door: Door) -> None:
    await door.gateway.redis.set(door.keys.key("failed"), "x")
    numbers = await scrape(door.gateway)
    assert 'gw_bullmq_queue_jobs{queue="video",state="failed"}' not in numbers
    assert numbers['gw_bullmq_queue_jobs{queue="video",state="wait"}'] == 0


async def test_without_queues_there_are_no_numbers(fake_make: Make) -> None:
    assert await scrape(fake_make()) == {"gw_bullmq_sse_clients": 0}
