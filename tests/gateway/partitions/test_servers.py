"""Partitions on separate servers: each serves its own jobs, and a failed one delays no others."""

from __future__ import annotations

import asyncio

import pytest

from sluice.common.errors import StoreUnavailable
from sluice.gateway.jobs.ids import new_job_id
from sluice.gateway.jobs.partitioned_store import PartitionedStore
from tests.gateway.observability.history.test_stream import jobs_in, open_page
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.gateway.partitions.conftest import AWAY, PARTITIONS, backlogs, job_in, kill, number
from tests.gateway.partitions.test_overview import queue_of, status_of
from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem, short_retries
from tests.support.servers import Backend, RealServer
from tests.support.waiting import eventually


@pytest.mark.fakeredis_only
async def test_each_server_has_only_keys_of_its_partitions(
    two_servers: tuple[Gateway, Backend],
) -> None:
    gateway, other = two_servers
    for _ in range(30):
        await gateway.create()
    here, there = await gateway.redis.keys("*"), await other.client().keys("*")
    assert here
    assert there
    assert {key[:4] for key in here} == {b"{0}:", b"{1}:", b"{2}:"}
    assert {key[:4] for key in there} == {b"{3}:"}
    assert (await gateway.state.store.counts()).accepted == 30


@pytest.mark.fakeredis_only
async def test_streams_are_read_from_the_server_of_their_job(
    two_servers: tuple[Gateway, Backend],
) -> None:
    gateway, other = two_servers
    there = other.client()
    job_ids = [await job_in(gateway, partition) for partition in range(PARTITIONS)]
    streams = [await gateway.client.watch(job_id) for job_id in job_ids]
    for stream in streams:
        await stream.event("queued")
    await eventually(lambda: len(gateway.hub._topics) == PARTITIONS)
    for job_id in job_ids:
        redis = there if number(gateway, job_id) == AWAY else gateway.redis
        fields = {"type": "done", "ts": "1", "step": "s", "data": "{}"}
        await redis.xadd(gateway.keys_of(job_id).events(job_id), fields)
    for stream in streams:
        assert [block.event for block in await stream.rest()] == ["done"]


@pytest.mark.real_redis
async def test_new_jobs_go_to_servers_that_are_available(
    losing: Gateway, leaving: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job is sent to an unavailable server to test it, even if it may be tried again."""
    monkeypatch.setattr("sluice.common.redis.batching.UNHEALTHY_S", 0.0)
    for _ in range(20):
        await losing.create()
    kill(leaving)
    check_problem(await post_to_unavailable(losing), 503, "store_unavailable")
    job_ids = [await losing.create() for _ in range(60)]
    assert {number(losing, job_id) for job_id in job_ids} == {0, 1, 2}
    assert (await losing.client.get("/readyz")).status == 200


def key_of(gateway: Gateway, partition: int) -> str:
    """An Idempotency-Key that belongs to a partition."""
    keys = map(str, range(1000))
    return next(key for key in keys if number(gateway, f" {key}") == partition)


async def post_to_unavailable(losing: Gateway) -> Answer:
    """The response to a job whose key belongs to the unavailable partition."""
    with short_retries(losing.batchers[AWAY]):
        return await losing.client.post(CHAT, {"idempotency-key": key_of(losing, AWAY)})


@pytest.mark.real_redis
async def test_streams_on_other_servers_continue(losing: Gateway, leaving: RealServer) -> None:
    gone, here = await job_in(losing, AWAY), await job_in(losing, 1)
    lost, kept = await losing.client.watch(gone), await losing.client.watch(here)
    for stream in (lost, kept):
        await stream.event("queued")
    await eventually(lambda: len(losing.hub._topics) == 2)
    kill(leaving)
    await losing.finish(here)
    assert [block.event for block in await asyncio.wait_for(kept.rest(), 10)] == ["done"]
    check_problem(await losing.client.get(f"/v1/jobs/{gone}"), 503, "store_unavailable")
    with pytest.raises(StoreUnavailable):
        await losing.state.store.counts()
    await lost.hang_up()


@pytest.mark.real_redis
async def test_a_server_that_recovers_gets_jobs_again(
    losing: Gateway, leaving: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed partition is tried again after `UNHEALTHY_S`, and used again after a success."""
    store = losing.state.store
    assert isinstance(store, PartitionedStore)
    await job_in(losing, AWAY)
    monkeypatch.setattr("sluice.common.redis.batching.UNHEALTHY_S", 3600.0)
    leaving.client.client_pause(60_000, all=False)
    check_problem(await post_to_unavailable(losing), 503, "store_unavailable")
    healthy = [store.healthy(partition) for partition in range(PARTITIONS)]
    assert healthy == [True, True, True, False]
    assert number(losing, await losing.create()) != AWAY
    leaving.client.client_unpause()
    monkeypatch.setattr("sluice.common.redis.batching.UNHEALTHY_S", 0.0)
    await eventually(lambda: store.healthy(AWAY))
    await job_in(losing, AWAY)
    monkeypatch.setattr("sluice.common.redis.batching.UNHEALTHY_S", 3600.0)
    assert store.healthy(AWAY)


@pytest.mark.fakeredis_only
async def test_if_all_servers_failed_every_partition_is_tried(make: Make) -> None:
    gateway = make()
    store = gateway.state.store
    assert isinstance(store, PartitionedStore)
    for batcher in store._batchers:
        batcher._fault_at = float("inf")
    assert len({number(gateway, store.new_id(new_job_id)) for _ in range(50)}) == PARTITIONS


@pytest.mark.real_redis
async def test_an_unavailable_partition_is_named(losing: Gateway, leaving: RealServer) -> None:
    for partition in range(PARTITIONS):
        await job_in(losing, partition)
    there = await backlogs(losing)
    kill(leaving)
    status = await status_of(losing)
    assert status["status"] == "warn"
    unavailable = status["checks"]["redis"][-1]
    assert (unavailable["status"], unavailable["partitions"]) == ("warn", [AWAY])
    assert unavailable["output"].startswith(f"partition {AWAY} does not answer: ")
    assert f"redis: partition {AWAY} does not answer" in status["output"]
    assert "depth" not in status["checks"]["queue"][0], "the depth is unknown"
    queue = await queue_of(losing)
    assert queue["depth"] is None
    depths = [part["depth"] for part in queue["partitions"]]
    assert depths == [*there[:AWAY], None]
    assert [bool(part["trouble"]) for part in queue["partitions"]] == [False, False, False, True]
    found = await scrape(losing)
    assert found.value("gw_up") == 1
    assert [labels["partition"] for labels in found.labels("gw_partition_backlog")] == list("012")
    assert "gw_queue_depth" not in found.names
    assert (await losing.client.get("/v1/jobs")).status == 503, "a list would be incomplete"


@pytest.mark.real_redis
async def test_the_dashboard_stream_survives_an_unavailable_partition(
    losing: Gateway, leaving: RealServer
) -> None:
    await losing.create()
    page = await open_page(losing)
    kill(leaving)
    with short_retries(losing.batchers[AWAY]):
        answers = [await losing.client.post(CHAT) for _ in range(12)]
    job_ids = {answer.json()["job_id"] for answer in answers if answer.status == 202}
    assert len(job_ids) > 6, "after the first failure, jobs go to other partitions"
    changes = await jobs_in(page, len(job_ids))
    assert {job["job_id"] for job in changes} == job_ids
    await page.hang_up()
