"""Status, queues, metrics, history and pages over partitions: totals, and failed partitions."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ClusterDownError, TryAgainError

from sluice.common.contracts.queue import paused_key
from sluice.common.contracts.stats import StatsField
from sluice.common.observability.heartbeats import LimitReading, LimitsReading
from sluice.gateway.observability.history.collector import Baseline
from sluice.gateway.observability.history.sampler import HistorySampler
from tests.gateway.observability.metrics.test_metrics import beat, scrape
from tests.gateway.observability.status.test_status import read as read_status
from tests.gateway.partitions.conftest import AWAY, PARTITIONS, backlogs, job_in
from tests.support.gateway.harness import Gateway, Make
from tests.support.servers import Backend

pytestmark = pytest.mark.fakeredis_only


async def queue_of(gateway: Gateway) -> dict[str, Any]:
    answer = await gateway.client.get("/v1/queues")
    assert answer.status == 200, answer
    [queue] = answer.json()["queues"]
    assert queue["name"] == "jobs:stream"
    return queue


async def status_of(gateway: Gateway) -> dict[str, Any]:
    return await read_status(gateway)


# -- queues ------------------------------------------------------------------------------------


async def test_queue_numbers_are_sums_over_the_partitions(gateway: Gateway) -> None:
    for _ in range(12):
        await gateway.create()
    for _ in range(6):
        await gateway.create({"task": "chat", "payload": {}, "delay_s": 600})
    for line in gateway.state.lines.clients[1:3]:
        await gateway.redis.xadd(line.keys.dead_letters, {"reason": "x"})
    each = await backlogs(gateway)
    assert (sum(each), min(each) < 12) == (12, True)
    queue = await queue_of(gateway)
    assert (queue["depth"], queue["pending"]) == (12, 0)
    assert (queue["scheduled"], queue["dead_letters"], queue["backlog_limit"]) == (6, 2, 200)
    assert [part["partition"] for part in queue["partitions"]] == [0, 1, 2, 3]
    assert [part["depth"] for part in queue["partitions"]] == each
    assert [part["dead_letters"] for part in queue["partitions"]] == [0, 1, 1, 0]
    assert sum(part["scheduled"] for part in queue["partitions"]) == 6
    assert {part["backlog_limit"] for part in queue["partitions"]} == {50}
    assert {part["trouble"] for part in queue["partitions"]} == {None}
    keeper = HistorySampler.over(gateway.state, lambda: 0.0)
    values, _ = await sample(gateway, keeper, Baseline())
    assert (values[StatsField.DEPTH], values[StatsField.SCHEDULED]) == (12, 6)
    assert values[StatsField.ACCEPTED_TOTAL] == 18


async def test_a_single_partition_is_not_listed(make: Make) -> None:
    alone = make(queue_partitions=1)
    assert "partitions" not in await queue_of(alone)
    assert "partitions" not in (await status_of(alone))["checks"]["redis"][0]
    assert "gw_partition_backlog" not in (await scrape(alone)).names


async def test_one_pause_holds_for_all_partitions(gateway: Gateway) -> None:
    answer = await gateway.client.send("POST", "/v1/queues/jobs:stream/pause")
    assert answer.status == 200, answer
    home, *others = [paused_key(line.keys.queue) for line in gateway.state.lines]
    assert home.startswith("{0}:")
    assert await gateway.redis.exists(home)
    assert not await gateway.redis.exists(*others)


# -- status and metrics ------------------------------------------------------------------------


async def test_metrics_are_sums_and_list_each_partition(gateway: Gateway) -> None:
    job_ids = [await gateway.create() for _ in range(10)]
    await gateway.redis.xadd(gateway.state.lines.clients[2].keys.dead_letters, {"reason": "x"})
    ended = gateway.state.lines.for_job(job_ids[0]).keys.counts
    await gateway.redis.hincrby(ended, "done", 3)
    await gateway.redis.hincrby(gateway.state.lines.clients[1].keys.counts, "error", 2)
    found = await scrape(gateway)
    assert found.value("gw_queue_depth") == 10
    assert found.value("gw_dlq_depth") == 1
    assert found.value("gw_jobs_finished_total") == 5
    each = [found.value("gw_partition_backlog", partition=str(n)) for n in range(PARTITIONS)]
    assert each == await backlogs(gateway)


async def test_each_server_has_its_own_check(
    gateway: Gateway, two_servers: tuple[Gateway, Backend]
) -> None:
    checks = (await status_of(two_servers[0]))["checks"]["redis"]
    assert [check["partitions"] for check in checks] == [[0, 1, 2], [3]]
    [check] = (await status_of(gateway))["checks"]["redis"]
    assert check["partitions"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "reported", [ClusterDownError("The cluster is down"), TryAgainError("later")]
)
async def test_a_partition_with_a_cluster_error_is_named(
    two_servers: tuple[Gateway, Backend], monkeypatch: pytest.MonkeyPatch, reported: Exception
) -> None:
    gateway, _ = two_servers
    client = gateway.state.lines.clients[AWAY].client
    await job_in(gateway, AWAY)

    def pipeline(*args: Any, **options: Any) -> Any:
        pipe = type(client).pipeline(client, *args, **options)
        executed = pipe.execute

        async def execute(raise_on_error: bool = True) -> list[Any]:
            return [reported for _ in await executed(raise_on_error)]

        pipe.execute = execute  # type: ignore[method-assign]
        return pipe

    monkeypatch.setattr(client, "pipeline", pipeline)
    unavailable = (await status_of(gateway))["checks"]["redis"][-1]
    assert (unavailable["status"], unavailable["partitions"]) == ("warn", [AWAY])
    assert str(reported) in unavailable["output"]
    assert (await queue_of(gateway))["partitions"][AWAY]["trouble"] == str(reported)
    assert (await gateway.client.get("/v1/jobs")).status == 503


async def test_a_nearly_full_partition_is_named(make: Make) -> None:
    gateway = make(backpressure_max_backlog=40)
    keys = gateway.state.lines.clients[2].keys
    for _ in range(9):
        await gateway.redis.xadd(keys.queue, {"job_id": "x"})
    [check] = (await status_of(gateway))["checks"]["queue"]
    assert (check["status"], check["depth"]) == ("warn", 9)
    assert "partition 2 is nearly full" in check["output"]


async def test_the_oldest_age_is_the_maximum_over_the_partitions(make: Make) -> None:
    gateway = make()
    await job_in(gateway, 2)
    await status_of(gateway)
    stall_tracker = gateway.app.state.metrics.stall_tracker
    stall_tracker._others[2]._since_s -= 100
    age_s = (await status_of(gateway))["checks"]["queue"][0]["oldest_age_s"]
    assert 100 <= age_s < 160


async def test_slots_of_a_limit_are_counted_in_each_partition(gateway: Gateway) -> None:
    now_ms = int(time.time() * 1000)
    limits = LimitsReading(across=[LimitReading(name="chat", places=2)])
    reported = replace(beat("w1"), limits=limits, seen_ms=now_ms)
    await gateway.heartbeat(reported)
    for line in gateway.state.lines.clients[1:]:
        held = {f"job-{line.number}": now_ms + 600_000}
        await gateway.redis.zadd(line.keys.running("chat"), held)
    [limit] = (await status_of(gateway))["checks"]["limits"]
    assert (limit["places"], limit["running"]) == (2 * PARTITIONS, 3)
    assert [holder["job_id"] for holder in limit["holders"]] == ["job-1", "job-2", "job-3"]


# -- history -----------------------------------------------------------------------------------


async def sample(
    gateway: Gateway, keeper: HistorySampler, before: Baseline
) -> tuple[Any, Baseline]:
    collected = await keeper._collector.collect(before)
    return collected.sample.values, collected.baseline


async def test_counts_of_an_unavailable_partition_are_added_later(
    two_servers: tuple[Gateway, Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, other = two_servers
    keeper = HistorySampler.over(gateway.state, lambda: 0.0)
    await job_in(gateway, AWAY)
    _, before = await sample(gateway, keeper, Baseline())
    counts, client = gateway.state.lines.clients[AWAY].keys.counts, other.client()
    await client.hincrby(counts, "done", 5)  # type: ignore[misc]
    with monkeypatch.context() as patch:
        patch.setattr(gateway.state.lines.clients[AWAY].client, "pipeline", _broken)
        await gateway.create()
        values, before = await sample(gateway, keeper, before)
        assert StatsField.DEPTH not in values
        assert values[StatsField.DONE] == 0
        assert values[StatsField.ACCEPTED] >= 0
    values, _ = await sample(gateway, keeper, before)
    assert values[StatsField.DONE] == 5, "the partition is back and no count is lost"
    assert values[StatsField.DEPTH] == sum(await backlogs(gateway))


def _broken(*args: Any, **options: Any) -> Any:
    raise ConnectionError("away")


# -- pages -------------------------------------------------------------------------------------


async def test_workers_are_read_from_the_first_partition(gateway: Gateway) -> None:
    now_ms = int(time.time() * 1000)
    reported = replace(beat("w1"), seen_ms=now_ms)
    other = gateway.state.lines.clients[1].keys
    await gateway.heartbeat(reported)
    await gateway.redis.zadd(other.workers, {"w2": now_ms})
    await gateway.redis.set(other.worker("w2"), reported.to_json())
    found = (await gateway.client.get("/v1/workers")).json()["workers"]
    assert [worker["consumer"] for worker in found] == ["w1"]
