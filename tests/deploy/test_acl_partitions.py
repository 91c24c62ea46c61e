"""users.acl with several partitions: jobs in any of them, everything else in partition 0."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import JobStore, NewJob
from common.redis.batching import ScriptBatcher
from common.redis.connection import async_client
from common.redis.partitions import Partitions
from common.redis.pipelined import PipelinedConnection
from deploy.installer.layout import GATEWAY, WORKER
from tests.deploy.test_acl import is_refused
from tests.support.deploy.acl import InstalledRedis
from tests.support.servers import REAL, require_binary

PARTITIONS = Partitions.create(JobKeys(), 4)
STREAMS = [
    *(keys.queue for keys in PARTITIONS.keys),
    *(PARTITIONS.keys[1].for_lane(lane).stream for lane in ("high", "low")),
]
#: Keys that gateway and worker may read in partition 0 only.
PARTITION_0_KEYS = ("workflow:running", "image:record:x", "rag.upload:x")


@pytest.fixture(scope="module", params=REAL)
def partitioned(request: Any) -> Iterator[InstalledRedis]:
    installed = InstalledRedis(require_binary(request.param), home=PARTITIONS.home)
    yield installed
    installed.close()


@pytest.fixture(params=range(PARTITIONS.count))
async def store(request: Any, partitioned: InstalledRedis) -> AsyncIterator[JobStore]:
    """Job store of one partition, connected as the gateway's user."""
    url = partitioned.url(GATEWAY)
    client, wire = async_client(url, connections=1), PipelinedConnection(url)
    keys = PARTITIONS.keys[request.param]
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT)
    yield JobStore(client, keys, batcher)
    await batcher.close()
    await wire.aclose()
    await client.aclose()


async def test_a_gateway_puts_jobs_into_any_partition(
    store: JobStore, partitioned: InstalledRedis
) -> None:
    job = NewJob("a", "chat", b"{}", 60, idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    partitioned.admin.acl_log_reset()
    assert (await store.enqueue(job, "workers", 10)).job_id == job.job_id
    assert await store.get(job.job_id) is not None
    assert not partitioned.refusals()


@pytest.mark.parametrize("stream", STREAMS)
def test_only_a_worker_reads_queues_and_lanes(partitioned: InstalledRedis, stream: str) -> None:
    gateway, worker = partitioned.client_of(GATEWAY), partitioned.client_of(WORKER)
    assert not is_refused(gateway, "XADD", stream, "*", "job_id", "x")
    assert not is_refused(gateway, "XLEN", stream)
    assert is_refused(gateway, "XRANGE", stream, "-", "+") is partitioned.has_selectors
    assert is_refused(gateway, "XREADGROUP", "GROUP", "workers", "me", "STREAMS", stream, ">")
    assert not is_refused(worker, "XRANGE", stream, "-", "+")


def test_a_gateway_sends_commands_to_workers(partitioned: InstalledRedis) -> None:
    for keys in PARTITIONS.keys:
        assert not is_refused(
            partitioned.client_of(GATEWAY), "PUBLISH", f"{keys.queue}:control", "x"
        )


@pytest.mark.parametrize("role", [GATEWAY, WORKER])
def test_other_keys_are_allowed_in_partition_0_only(partitioned: InstalledRedis, role: str) -> None:
    client = partitioned.client_of(role)
    for name in PARTITION_0_KEYS:
        assert not is_refused(client, "EXISTS", f"{PARTITIONS.home.tag}{name}")
        assert is_refused(client, "EXISTS", f"{PARTITIONS.keys[3].tag}{name}")
    for name in (*PARTITION_0_KEYS, "job:x", "jobs:stream:counts", "access:rate:k"):
        assert is_refused(client, "EXISTS", name)
    assert is_refused(client, "EXISTS", "{1}:access:rate:k") is (role == WORKER)
