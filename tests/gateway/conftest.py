"""A gateway without a network or a lifespan, on the Redis server of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from common.settings.gateway import GatewaySettings
from gateway.app import create_app
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
