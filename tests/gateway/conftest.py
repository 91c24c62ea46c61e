"""A gateway without a network or a lifespan, on the Redis server of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from sluice.common.process import crashpoints
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.admin import queues as queues_route
from sluice.gateway.app import create_app
from sluice.gateway.observability.history import collector
from sluice.gateway.observability.metrics import routes as metrics_route
from sluice.gateway.observability.snapshot import limits as limits_snapshot
from sluice.gateway.observability.snapshot import redis as redis_snapshot
from sluice.gateway.observability.status import routes as status_route
from tests.support.gateway.harness import Gateway, Make, gateway_maker
from tests.support.servers import BUNDLED, Backend, RealServer, require_binary


@pytest.fixture
def queue_partitions(request: pytest.FixtureRequest) -> int:
    """Number of partitions of the gateways; more than one in tests marked `partitioned`."""
    return getattr(request, "param", 1)


@pytest.fixture
async def make(backend: Backend, queue_partitions: int) -> AsyncIterator[Make]:
    """Builds gateways with the given settings, on every kind of Redis."""
    async for factory in gateway_maker(backend, queue_partitions=queue_partitions):
        yield factory


@pytest.fixture
async def gateway(make: Make) -> Gateway:
    """A gateway with the default settings, on every kind of Redis."""
    return make()


@pytest.fixture
def leaving() -> Iterator[RealServer]:
    """A Redis server that a test may stop."""
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """The OpenAPI document; shared, because building it is slow."""
    return create_app(GatewaySettings()).openapi()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like an unreachable Redis."""
    assert metrics_route.TIMEOUT_S < 2
    for route in (metrics_route, queues_route, status_route):
        monkeypatch.setattr(route, "TIMEOUT_S", 20.0)
    monkeypatch.setattr(redis_snapshot, "OTHER_PARTITIONS_TIMEOUT_S", 15.0)
    monkeypatch.setattr(limits_snapshot, "PARTITION_TIMEOUT_S", 15.0)
    monkeypatch.setattr(collector, "OTHER_PARTITIONS_TIMEOUT_S", 15.0)


Crash = Callable[[CrashPoint], None]


class Died(BaseException):
    """A BaseException, because the gateway must not catch it, as it cannot catch kill -9."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Crash:
    """Arms one crash point."""

    def arm(target: CrashPoint) -> None:
        def reach(point: CrashPoint) -> None:
            if point is target:
                monkeypatch.undo()
                raise Died

        monkeypatch.setattr(crashpoints, "reach", reach)

    return arm


@pytest.fixture
async def strict(make: Make) -> Gateway:
    """A gateway that requires keys from every client."""
    return make(auth="required")
