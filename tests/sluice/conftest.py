"""Fixtures: both clients, a scripted gateway, and a real gateway with a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sluice import AsyncSluice, Sluice
from sluice.transport import retry
from tests.support.client.blocking_proxy import BlockingProxy
from tests.support.client.scripted_gateway import ScriptedGateway
from tests.support.client.site import Site

Connect = Callable[..., Any]
ASYNC_AGAIN = pytest.mark.slow("the same with the other client")


@contextmanager
def clients(kind: str) -> Iterator[Connect]:
    """Creates blocking clients (`sync`), or asyncio clients behind a blocking proxy."""
    loop = asyncio.new_event_loop()
    created: list[Any] = []

    def make(url: str, api_key: str | None = None, **options: Any) -> Any:
        if kind == "sync":
            created.append(Sluice(url, api_key, **options))
        else:
            created.append(BlockingProxy(AsyncSluice(url, api_key, **options), loop))
        return created[-1]

    yield make
    for client in created:
        client.close()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture(params=["sync", "async"])
def connect(request: Any) -> Iterator[Connect]:
    """Creates clients of one kind in each run of the test."""
    with clients(request.param) as make:
        yield make


@pytest.fixture(params=["sync", pytest.param("async", marks=ASYNC_AGAIN)])
def connect_to_site(request: Any) -> Iterator[Connect]:
    """Likewise, for tests with real processes; the fast tier has only the blocking client."""
    with clients(request.param) as make:
        yield make


@pytest.fixture
def sluice(connect_to_site: Connect, site: Site) -> Any:
    return connect_to_site(site.url)


@pytest.fixture
def script() -> Iterator[ScriptedGateway]:
    script = ScriptedGateway()
    yield script
    script.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retry pauses."""
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.01)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One per test process."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.close()
