"""Fixtures that more than one room uses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from common.coalescer import Coalescer
from common.contracts.jobs import JobKeys
from common.store import JobStore, WorkerIdentity
from tests.backends import ALL, FAKE, REAL, Backend, RealServer, require_binary

#: Before anybody imports numpy: its threads would wait for each other while other tests run.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


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


async def _open(name: str, real_server: Callable[[str], RealServer]) -> AsyncIterator[Backend]:
    url = None
    if name != FAKE:
        server = real_server(name)
        server.client.flushall()
        server.client.script_flush()
        url = server.url
    backend = Backend(name, url)
    yield backend
    await backend.close()


@pytest.fixture(params=ALL)
async def backend(request: Any, real_server: Any) -> AsyncIterator[Backend]:
    """An empty Redis of every kind: the conformance tests run on each."""
    async for opened in _open(request.param, real_server):
        yield opened


@pytest.fixture(params=REAL)
async def real_backend(request: Any, real_server: Any) -> AsyncIterator[Backend]:
    """An empty real Redis of every kind."""
    async for opened in _open(request.param, real_server):
        yield opened


@pytest.fixture
async def fake_backend() -> AsyncIterator[Backend]:
    """An empty fakeredis."""
    backend = Backend(FAKE)
    yield backend
    await backend.close()


@pytest.fixture
def keys() -> JobKeys:
    return JobKeys()


@pytest.fixture
def worker() -> WorkerIdentity:
    return WorkerIdentity(group="workers", consumer="c1", lease_ms=30_000, default_ttl_s=600)


@pytest.fixture
async def store(backend: Backend, keys: JobKeys) -> AsyncIterator[JobStore]:
    """A job store on an empty Redis of every kind."""
    coalescer = Coalescer(backend.wire(), keys, patience_s=5.0)
    yield JobStore(backend.client(), keys, coalescer)
    await coalescer.close()


async def eventually(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Wait until a condition (it may be async) holds; fails clearly if it never does."""
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
