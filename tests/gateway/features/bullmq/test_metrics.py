"""Metrics of BullMQ queues."""

from __future__ import annotations

import pytest

from tests.support.gateway.bullmq import QueueApi
from tests.support.gateway.harness import Gateway, Make


async def scrape(gateway: Gateway) -> dict[str, float]:
    text = (await gateway.client.get("/metrics")).body.decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("gw_bullmq"))
    return {name: float(value) for name, value in pairs}


@pytest.mark.real_redis
async def test_jobs_are_counted_by_queue_and_outcome(api: QueueApi) -> None:
    await api.add()
    await api.add({"priority": 1, "jobId": "mine"})
    await api.add({"priority": 1, "jobId": "mine"})
    await api.add({"delay": 60_000})
    await (await api.watch()).event("hello")
    metrics = await scrape(api.gateway)
    added = 'gw_bullmq_jobs_total{outcome="%s",queue="video"}'
    assert metrics[added % "created"] == 3
    assert metrics[added % "duplicate"] == 1
    assert metrics[added % "full"] == 0
    depth = 'gw_bullmq_queue_jobs{queue="video",state="%s"}'
    assert [metrics[depth % state] for state in ("wait", "prioritized", "delayed", "failed")] == [
        *(1, 1, 1, 0)
    ]
    assert metrics["gw_bullmq_sse_clients"] == 1


@pytest.mark.real_redis
async def test_a_key_of_another_type_is_left_out(api: QueueApi) -> None:
    await api.gateway.redis.set(api.keys.key("failed"), "x")
    metrics = await scrape(api.gateway)
    assert 'gw_bullmq_queue_jobs{queue="video",state="failed"}' not in metrics
    assert metrics['gw_bullmq_queue_jobs{queue="video",state="wait"}'] == 0


@pytest.mark.fakeredis_only
async def test_without_queues_there_are_no_queue_metrics(make: Make) -> None:
    assert await scrape(make()) == {"gw_bullmq_sse_clients": 0}
