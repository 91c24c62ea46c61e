"""Workflow jobs and webhooks in `/metrics` and `/v1/status`."""

from __future__ import annotations

from common.contracts.workflow.keys import WorkflowKeys
from tests.gateway.conftest import Gateway
from tests.gateway.observability.metrics.test_metrics import scrape

KEYS = WorkflowKeys()


async def fill(gateway: Gateway) -> None:
    await gateway.redis.hset(KEYS.running, mapping={"a": "x", "b": "y"})
    await gateway.redis.zadd(KEYS.reviews, {"a": 1, "b": 2, "c": 3})
    await gateway.redis.zadd(KEYS.deliveries, {"a": 1})
    for _ in range(4):
        await gateway.redis.xadd(KEYS.dead_letters, {"x": "y"})


async def test_jobs_and_deliveries_are_counted(gateway: Gateway) -> None:
    await fill(gateway)
    found = await scrape(gateway)
    assert found.value("gw_workflows_running") == 2
    assert found.value("gw_workflows_waiting_input") == 3
    assert found.value("gw_webhooks_waiting") == 1
    assert found.value("gw_webhooks_dlq_depth") == 4


async def test_dead_lettered_deliveries_are_a_warning(gateway: Gateway) -> None:
    [check] = (await gateway.client.get("/v1/status")).json()["checks"]["workflows"]
    assert check["status"] == "pass"
    await fill(gateway)
    [check] = (await gateway.client.get("/v1/status")).json()["checks"]["workflows"]
    assert check["status"] == "warn"
    assert "4 webhook deliveries failed after all attempts" in check["output"]
    assert (check["running"], check["waiting_input"], check["webhooks_waiting"]) == (2, 3, 1)


async def test_keys_of_another_type_are_left_out(gateway: Gateway) -> None:
    await gateway.redis.set(KEYS.running, "no hash")
    await gateway.redis.set(KEYS.dead_letters, "no stream")
    found = await scrape(gateway)
    assert "gw_workflows_running" not in found.names
    assert found.value("gw_workflows_waiting_input") == 0
