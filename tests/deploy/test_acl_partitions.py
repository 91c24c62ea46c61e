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
from deploy.installer.plan import keys_of
from tests.deploy.test_acl import is_refused
from tests.support.deploy.acl import InstalledRedis
from tests.support.deploy.fake_machine import FakeMachine
from tests.support.servers import REAL, require_binary

PARTITIONS = Partitions.create(JobKeys(), 4)
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
    client, wire = (
        async_client(partitioned.url(GATEWAY), connections=1),
        PipelinedConnection(partitioned.url(GATEWAY)),
    )
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
    assert (await store.enqueue(job, "workers", 10)).job_id == job.job_id
    assert await store.get(job.job_id) is not None
    assert not partitioned.refusals()


@pytest.mark.parametrize("number", range(PARTITIONS.count))
def test_only_a_worker_reads_the_queues(partitioned: InstalledRedis, number: int) -> None:
    queue = PARTITIONS.keys[number].queue
    gateway, worker = partitioned.client(GATEWAY), partitioned.client(WORKER)
    assert not is_refused(worker, "XRANGE", queue, "-", "+")
    assert is_refused(gateway, "XRANGE", queue, "-", "+") is partitioned.has_selectors
    assert is_refused(gateway, "XREADGROUP", "GROUP", "workers", "me", "STREAMS", queue, ">")
    assert not is_refused(gateway, "PUBLISH", f"{queue}:control", "x")
    partitioned.admin.acl_log_reset()


@pytest.mark.parametrize("lane", ["high", "low"])
def test_gateway_cannot_read_a_lane(partitioned: InstalledRedis, lane: str) -> None:
    stream = PARTITIONS.keys[1].for_lane(lane).stream
    gateway, worker = partitioned.client(GATEWAY), partitioned.client(WORKER)
    assert not is_refused(gateway, "XADD", stream, "*", "job_id", "x")
    assert not is_refused(gateway, "XLEN", stream)
    assert is_refused(gateway, "XRANGE", stream, "-", "+") is partitioned.has_selectors
    assert is_refused(gateway, "XREADGROUP", "GROUP", "workers", "me", "STREAMS", stream, ">")
    assert not is_refused(worker, "XRANGE", stream, "-", "+")
    partitioned.admin.acl_log_reset()


@pytest.mark.parametrize("name", PARTITION_0_KEYS)
def test_other_keys_are_allowed_in_partition_0_only(partitioned: InstalledRedis, name: str) -> None:
    for role in (GATEWAY, WORKER):
        client = partitioned.client(role)
        assert not is_refused(client, "EXISTS", f"{PARTITIONS.home.tag}{name}")
        for elsewhere in (f"{PARTITIONS.keys[3].tag}{name}", name):
            assert is_refused(client, "EXISTS", elsewhere)
    partitioned.admin.acl_log_reset()


def test_keys_without_a_hash_tag_are_denied(partitioned: InstalledRedis) -> None:
    for role in (GATEWAY, WORKER):
        for name in ("job:x", "jobs:stream:counts", "access:rate:k"):
            assert is_refused(partitioned.client(role), "EXISTS", name)
    assert is_refused(partitioned.client(WORKER), "EXISTS", "{1}:access:rate:k")
    assert not is_refused(partitioned.client(GATEWAY), "EXISTS", "{1}:access:rate:k")
    partitioned.admin.acl_log_reset()


def test_installer_reads_the_number_from_gateway_env(machine: FakeMachine) -> None:
    settings = machine.layout.config / "gateway.env"
    settings.parent.mkdir(parents=True, exist_ok=True)
    assert keys_of(machine.layout) == JobKeys()
    for text, tag in (("4", "{0}:"), ("1", ""), ("0", ""), ("many", ""), ("", "")):
        settings.write_text(f"QUEUE_PARTITIONS={text}\nQUEUE_STREAM_KEY=work\n")
        assert keys_of(machine.layout).tag == tag
        assert keys_of(machine.layout).queue == f"{tag}work"
