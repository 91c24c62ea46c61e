"""Partitions on separate servers: each serves its own jobs, and a failed one delays no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from common.errors import StoreUnavailable
from gateway.jobs.ids import new_job_id
from gateway.jobs.partitioned_store import PartitionedStore
from tests.conftest import eventually
from tests.gateway.asgi import Answer
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem, short_retries
from tests.support.backends import FAKE, SYSTEM, Backend, RealServer

PARTITIONS = 3
#: The partition on the other server.
AWAY = 2


@pytest.fixture
async def two_servers(fake_make: Make) -> AsyncIterator[tuple[Gateway, Backend]]:
    """A gateway, and the other server of its two, which has the last partition."""
    other = Backend(FAKE)
    yield fake_make(queue_partitions=PARTITIONS, others={AWAY: other}), other
    await other.close()


@pytest.fixture
async def losing(real_make: Make, leaving: RealServer) -> AsyncIterator[Gateway]:
    """A gateway whose last partition is on a server that will be stopped."""
    other = Backend(SYSTEM, leaving.url)
    settings = {"queue_partitions": PARTITIONS, "backpressure_max_backlog": 900}
    yield real_make(others={AWAY: other}, **settings)
    await other.close()


def number(gateway: Gateway, job_id: str) -> int:
    return gateway.state.lines.partitions.number(job_id)


async def job_in(gateway: Gateway, partition: int) -> str:
    while True:
        job_id = await gateway.create()
        if number(gateway, job_id) == partition:
            return job_id


async def test_each_server_has_only_keys_of_its_partitions(
    two_servers: tuple[Gateway, Backend],
) -> None:
    gateway, other = two_servers
    for _ in range(30):
        await gateway.create()
    here, there = await gateway.redis.keys("*"), await other.client().keys("*")
    assert here
    assert there
    assert {key[:4] for key in here} == {b"{0}:", b"{1}:"}
    assert {key[:4] for key in there} == {b"{2}:"}
    assert (await gateway.state.store.counts()).accepted == 30


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
        await redis.xadd(gateway.keys_of(job_id).events(job_id), fields)  # type: ignore[arg-type]
    for stream in streams:
        assert [block.event for block in await stream.rest()] == ["done"]


async def test_new_jobs_go_to_servers_that_are_available(
    losing: Gateway, leaving: RealServer
) -> None:
    for _ in range(20):
        await losing.create()
    leaving.process.kill()
    leaving.process.wait()
    check_problem(await post_to_unavailable(losing), 503, "store_unavailable")
    job_ids = [await losing.create() for _ in range(40)]
    assert {number(losing, job_id) for job_id in job_ids} == {0, 1}
    assert (await losing.client.get("/readyz")).status == 200


def key_of(gateway: Gateway, partition: int) -> str:
    """An Idempotency-Key that belongs to a partition."""
    keys = map(str, range(1000))
    return next(key for key in keys if number(gateway, f" {key}") == partition)


async def post_to_unavailable(losing: Gateway) -> Answer:
    """The response to a job whose key belongs to the unavailable partition."""
    with short_retries(losing.batchers[AWAY]):
        return await losing.client.post(CHAT, {"idempotency-key": key_of(losing, AWAY)})


async def test_streams_on_other_servers_continue(losing: Gateway, leaving: RealServer) -> None:
    gone, here = await job_in(losing, AWAY), await job_in(losing, 1)
    lost, kept = await losing.client.watch(gone), await losing.client.watch(here)
    for stream in (lost, kept):
        await stream.event("queued")
    await eventually(lambda: len(losing.hub._topics) == 2)
    leaving.process.kill()
    leaving.process.wait()
    await losing.finish(here)
    assert [block.event for block in await asyncio.wait_for(kept.rest(), 10)] == ["done"]
    check_problem(await losing.client.get(f"/v1/jobs/{gone}"), 503, "store_unavailable")
    with pytest.raises(StoreUnavailable):
        await losing.state.store.counts()
    await lost.hang_up()


async def test_no_job_is_sent_to_test_an_unavailable_server(
    losing: Gateway, leaving: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a server is unavailable, jobs without a key are accepted by the other servers."""
    monkeypatch.setattr("common.redis.batching.UNHEALTHY_S", 0.01)
    leaving.process.kill()
    leaving.process.wait()
    check_problem(await post_to_unavailable(losing), 503, "store_unavailable")
    for _ in range(60):
        assert number(losing, await losing.create()) != AWAY
        await asyncio.sleep(0.02)


async def test_a_server_that_recovers_gets_jobs_again(
    losing: Gateway, leaving: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed partition is tried again after `UNHEALTHY_S`, and used again after a success."""
    store = losing.state.store
    assert isinstance(store, PartitionedStore)
    await job_in(losing, AWAY)
    monkeypatch.setattr("common.redis.batching.UNHEALTHY_S", 3600.0)
    leaving.client.client_pause(60_000, all=False)
    check_problem(await post_to_unavailable(losing), 503, "store_unavailable")
    assert [store.healthy(partition) for partition in range(PARTITIONS)] == [True, True, False]
    assert number(losing, await losing.create()) != AWAY
    leaving.client.client_unpause()
    monkeypatch.setattr("common.redis.batching.UNHEALTHY_S", 0.0)
    await eventually(lambda: store.healthy(AWAY))
    await job_in(losing, AWAY)
    monkeypatch.setattr("common.redis.batching.UNHEALTHY_S", 3600.0)
    assert store.healthy(AWAY)


async def test_if_all_servers_failed_every_partition_is_tried(fake_make: Make) -> None:
    gateway = fake_make(queue_partitions=PARTITIONS)
    store = gateway.state.store
    assert isinstance(store, PartitionedStore)
    for batcher in store._batchers:
        batcher._fault_at = float("inf")
    assert len({number(gateway, store.new_id(new_job_id)) for _ in range(50)}) == PARTITIONS
