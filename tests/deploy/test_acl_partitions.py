"""users.acl of a queue in several partitions: jobs in any of them, the rest in the home's alone."""

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
from tests.deploy.box import Box
from tests.deploy.kit import InstalledRedis
from tests.deploy.test_acl import is_refused
from tests.support.backends import REAL, require_binary

PARTITIONS = Partitions.create(JobKeys(), 4)
#: What a gateway and a worker may read in the home partition, and nowhere else.
AT_HOME = ("workflow:running", "image:record:x", "rag.upload:x")


@pytest.fixture(scope="module", params=REAL)
def parted(request: Any) -> Iterator[InstalledRedis]:
    installed = InstalledRedis(require_binary(request.param), home=PARTITIONS.home)
    yield installed
    installed.close()


@pytest.fixture(params=range(PARTITIONS.count))
async def store(request: Any, parted: InstalledRedis) -> AsyncIterator[JobStore]:
    """Of one partition, as the gateway's user."""
    client, wire = (
        async_client(parted.url(GATEWAY), connections=1),
        PipelinedConnection(parted.url(GATEWAY)),
    )
    keys = PARTITIONS.keys[request.param]
    batcher = ScriptBatcher(wire, keys, CORE_SCRIPT)
    yield JobStore(client, keys, batcher)
    await batcher.close()
    await wire.aclose()
    await client.aclose()


async def test_a_gateway_puts_jobs_into_any_partition(
    store: JobStore, parted: InstalledRedis
) -> None:
    job = NewJob("a", "chat", b"{}", 60, idempotency_key="k", idempotency_ttl_s=60, fingerprint="f")
    assert (await store.enqueue(job, "workers", 10)).job_id == job.job_id
    assert await store.get(job.job_id) is not None
    assert not parted.refusals()


@pytest.mark.parametrize("number", range(PARTITIONS.count))
def test_only_a_worker_reads_the_queues(parted: InstalledRedis, number: int) -> None:
    queue = PARTITIONS.keys[number].queue
    gateway, worker = parted.client(GATEWAY), parted.client(WORKER)
    assert not is_refused(worker, "XRANGE", queue, "-", "+")
    assert is_refused(gateway, "XRANGE", queue, "-", "+") is parted.has_selectors
    assert is_refused(gateway, "XREADGROUP", "GROUP", "workers", "me", "STREAMS", queue, ">")
    assert not is_refused(gateway, "PUBLISH", f"{queue}:control", "x")
    parted.admin.acl_log_reset()


@pytest.mark.parametrize("lane", ["high", "low"])
def test_a_lane_is_as_closed_as_the_queue(parted: InstalledRedis, lane: str) -> None:
    stream = PARTITIONS.keys[1].for_lane(lane).stream
    gateway, worker = parted.client(GATEWAY), parted.client(WORKER)
    assert not is_refused(gateway, "XADD", stream, "*", "job_id", "x")
    assert not is_refused(gateway, "XLEN", stream)
    assert is_refused(gateway, "XRANGE", stream, "-", "+") is parted.has_selectors
    assert is_refused(gateway, "XREADGROUP", "GROUP", "workers", "me", "STREAMS", stream, ">")
    assert not is_refused(worker, "XRANGE", stream, "-", "+")
    parted.admin.acl_log_reset()


@pytest.mark.parametrize("name", AT_HOME)
def test_what_there_is_one_of_is_at_home(parted: InstalledRedis, name: str) -> None:
    for role in (GATEWAY, WORKER):
        client = parted.client(role)
        assert not is_refused(client, "EXISTS", f"{PARTITIONS.home.tag}{name}")
        for elsewhere in (f"{PARTITIONS.keys[3].tag}{name}", name):
            assert is_refused(client, "EXISTS", elsewhere)
    parted.admin.acl_log_reset()


def test_names_without_a_tag_are_nobodys(parted: InstalledRedis) -> None:
    for role in (GATEWAY, WORKER):
        for name in ("job:x", "jobs:stream:counts", "access:rate:k"):
            assert is_refused(parted.client(role), "EXISTS", name)
    assert is_refused(parted.client(WORKER), "EXISTS", "{1}:access:rate:k")
    assert not is_refused(parted.client(GATEWAY), "EXISTS", "{1}:access:rate:k")
    parted.admin.acl_log_reset()


def test_the_installer_reads_their_number_from_the_gateways_settings(box: Box) -> None:
    settings = box.layout.config / "gateway.env"
    settings.parent.mkdir(parents=True, exist_ok=True)
    assert keys_of(box.layout) == JobKeys()
    for text, tag in (("4", "{0}:"), ("1", ""), ("0", ""), ("many", ""), ("", "")):
        settings.write_text(f"QUEUE_PARTITIONS={text}\nQUEUE_STREAM_KEY=work\n")
        assert keys_of(box.layout).tag == tag
        assert keys_of(box.layout).queue == f"{tag}work"
