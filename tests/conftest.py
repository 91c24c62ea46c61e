"""Fixtures for more than one test package."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import JobStore, WorkerIdentity
from common.redis.batching import ScriptBatcher
from common.redis.partitions import HOME_PARTITION
from tests.support.backends import (
    ALL,
    CLUSTER,
    FAKE,
    REAL,
    SENTINEL,
    TOPOLOGIES,
    Backend,
    RealServer,
    kinds,
    require_binary,
)
from tests.topologies import RedisCluster, SentinelSet, cluster, sentinel_set

#: Set before numpy is imported: its threads would wait for each other while other tests run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips tests that need one server on other topologies, and tests without partitions on a
    Cluster.
    """
    several = [item for item in items if item.get_closest_marker("topology")]
    left_out = {item for item in several if item.get_closest_marker("one_server")}
    left_out |= {
        item
        for item in several
        if item.get_closest_marker("plain_names") and CLUSTER in item.callspec.params.values()  # type: ignore[attr-defined]
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def real_server() -> Iterator[Callable[[str], RealServer]]:
    """Starts each kind of server once per test process."""
    running: dict[str, RealServer] = {}

    def get(name: str) -> RealServer:
        if name not in running:
            running[name] = RealServer(require_binary(name))
        return running[name]

    yield get
    for server in running.values():
        server.close()


Topology = Callable[[str], "SentinelSet | RedisCluster"]


@pytest.fixture(scope="session")
def topology() -> Iterator[Topology]:
    """Starts each topology once per test process, on first use."""
    running: dict[str, SentinelSet | RedisCluster] = {}
    starters: dict[str, Any] = {SENTINEL: sentinel_set, CLUSTER: cluster}
    with ExitStack() as stack:

        def get(name: str) -> SentinelSet | RedisCluster:
            if name not in running:
                running[name] = stack.enter_context(starters[name]())
            return running[name]

        yield get


async def _open(
    name: str, real_server: Callable[[str], RealServer], topology: Topology
) -> AsyncIterator[Backend]:
    url = None
    if name in TOPOLOGIES:
        servers = topology(name)
        servers.flush()
        url = servers.url
    elif name != FAKE:
        server = real_server(name)
        server.client.flushall()
        server.client.script_flush()
        url = server.url
    backend = Backend(name, url)
    yield backend
    await backend.close()


@pytest.fixture(params=kinds(ALL))
async def backend(request: Any, real_server: Any, topology: Topology) -> AsyncIterator[Backend]:
    """An empty Redis of every kind: the conformance tests run on each."""
    async for opened in _open(request.param, real_server, topology):
        yield opened


@pytest.fixture(params=kinds(REAL))
async def real_backend(
    request: Any, real_server: Any, topology: Topology
) -> AsyncIterator[Backend]:
    """An empty real Redis of every kind."""
    async for opened in _open(request.param, real_server, topology):
        yield opened


@pytest.fixture
async def fake_backend() -> AsyncIterator[Backend]:
    """An empty fakeredis."""
    backend = Backend(FAKE)
    yield backend
    await backend.close()


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> JobKeys:
    """The key names of the contract; on a Cluster those of its first partition."""
    callspec = getattr(request.node, "callspec", None)
    params = callspec.params if callspec is not None else {}
    on_cluster = CLUSTER in (params.get("backend"), params.get("real_backend"))
    return JobKeys().partition(HOME_PARTITION) if on_cluster else JobKeys()


@pytest.fixture
def worker() -> WorkerIdentity:
    return WorkerIdentity(group="workers", consumer="c1", lease_ms=30_000, default_ttl_s=600)


@pytest.fixture
async def store(backend: Backend, keys: JobKeys) -> AsyncIterator[JobStore]:
    """A job store on an empty Redis of every kind."""
    batcher = ScriptBatcher(backend.wire(), keys, CORE_SCRIPT, retry_for_s=5.0)
    yield JobStore(backend.client(), keys, batcher)
    await batcher.close()


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Waits until a condition (which may be async) is true; fails after the timeout."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"{condition} did not hold within {timeout_s} s")
        await asyncio.sleep(0.01)
