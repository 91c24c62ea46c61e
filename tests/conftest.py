"""Fixtures for more than one test package."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, WorkerIdentity
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.partitions import HOME_PARTITION
from tests.support.s3_server import s3_server
from tests.support.servers import (
    ALL,
    CLUSTER,
    FAKE,
    FAST,
    REAL,
    SENTINEL,
    TOPOLOGIES,
    WITH_TOPOLOGIES,
    Backend,
    RealServer,
    kinds,
    require_binary,
)
from tests.support.topologies import RedisCluster, SentinelSet, cluster, sentinel_set

#: Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

#: Set before numpy is imported: its threads would wait for each other while other tests run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
    # Freed memory of large objects goes back to the system: 100 MB less per test process.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
    ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 128 << 10)
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
#: Commands that tests start inherit an ignored Ctrl-C, as in `make test &`.
signal.signal(signal.SIGINT, signal.default_int_handler)


_SLOW_MODULE = re.compile(r"^pytestmark = .*pytest\.mark\.slow\(", re.MULTILINE)
#: Directories whose tests have a separate command, and the marker that they all have.
_OWN_COMMAND = {"browser": "browser", "system": "system", "topologies": "topology"}
#: Makes hypothesis compute its tables of characters and keep them in `.hypothesis`.
_FILL_HYPOTHESIS_CACHE = """
import warnings
from hypothesis import strategies
warnings.simplefilter("ignore")
strategies.text().example()
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sluice")
    group.addoption(
        "--tier",
        choices=["fast", "slow", "all"],
        default="fast",
        help="fast (default): no slow tests, on fakeredis and the embedded Redis. all: every test "
        "and server, except those with a separate command (system, browser, topologies). "
        "slow: all but fast",
    )
    group.addoption(
        "--servers",
        default="",
        help=f"run tests only on these servers, separated by commas: {', '.join(ALL)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Loads plugins of slow tests only with them, and fills the cache of hypothesis.

    The cache is computed in another process, because that takes 200 MB.
    """
    if config.getoption("--tier") != "fast":
        config.pluginmanager.import_plugin("schemathesis.pytest.plugin")
    is_xdist_worker = hasattr(config, "workerinput")
    if not is_xdist_worker and not (config.rootpath / ".hypothesis" / "unicode_data").exists():
        subprocess.run([sys.executable, "-c", _FILL_HYPOTHESIS_CACHE], cwd=config.rootpath)


def _chosen_servers(config: pytest.Config) -> tuple[str, ...]:
    names = tuple(name for name in config.getoption("--servers").split(",") if name)
    if unknown := set(names) - set(ALL):
        raise pytest.UsageError(f"unknown server: {', '.join(sorted(unknown))}")
    return names or (FAST if config.getoption("--tier") == "fast" else ALL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import modules of which no test will run."""
    if collection_path.is_dir():
        marker = _OWN_COMMAND.get(collection_path.name)
        apart = collection_path.parent.name == "tests" and f"not {marker}" in config.option.markexpr
        return True if apart else None
    if config.getoption("--tier") != "fast" or os.environ.get(WITH_TOPOLOGIES):
        return None
    name = collection_path.name
    if not name.startswith("test_") or not name.endswith(".py"):
        return None
    return True if _SLOW_MODULE.search(collection_path.read_text()) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that uses `backend` on every kind of server, or on those its marker allows."""
    if "backend" not in metafunc.fixturenames:
        return
    marked = metafunc.definition.get_closest_marker
    if marked("fakeredis_only"):
        servers: list[Any] = [FAKE]
    else:
        chosen = _chosen_servers(metafunc.config)
        among = REAL if marked("real_redis") else ALL
        # If none is chosen, all of them: they are deselected below, which is not a skip.
        servers = kinds(tuple(name for name in among if name in chosen) or among)
    metafunc.parametrize("backend", servers, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the tier and the markers exclude."""
    tier = config.getoption("--tier")
    unused = set(ALL) - set(_chosen_servers(config))
    left_out = set()
    for item in items:
        marked = item.get_closest_marker
        callspec = getattr(item, "callspec", None)
        values = set(map(str, callspec.params.values())) if callspec is not None else set()
        slow = marked("slow")
        if slow is not None and not slow.args:
            raise pytest.UsageError(f"{item.nodeid}: the marker slow needs a reason")
        fast = slow is None and not values & (set(ALL) - set(FAST))
        if marked("topology"):
            unsuitable = marked("one_server") or (marked("plain_names") and CLUSTER in values)
        else:
            unsuitable = (tier == "fast" and slow) or (tier == "slow" and fast)
        if unsuitable or values & unused:
            left_out.add(item)
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


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of an S3 server on loopback. Mark the tests with `xdist_group("s3")`."""
    with s3_server() as url:
        yield url


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


@pytest.fixture
async def backend(request: Any, real_server: Any, topology: Topology) -> AsyncIterator[Backend]:
    """An empty Redis; `pytest_generate_tests` chooses the kinds."""
    async for opened in _open(request.param, real_server, topology):
        yield opened


@pytest.fixture
def keys(request: pytest.FixtureRequest) -> JobKeys:
    """The key names of the contract; on a Cluster those of its first partition."""
    callspec = getattr(request.node, "callspec", None)
    params = callspec.params if callspec is not None else {}
    on_cluster = params.get("backend") == CLUSTER
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
