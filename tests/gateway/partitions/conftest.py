"""Gateways with four partitions, on one server or two."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway.harness import Gateway, Make
from tests.support.servers import BUNDLED, FAKE, Backend, RealServer

PARTITIONS = 4
#: The partition on the other server.
AWAY = 3


@pytest.fixture
def queue_partitions() -> int:
    return PARTITIONS


@pytest.fixture
async def two_servers(make: Make) -> AsyncIterator[tuple[Gateway, Backend]]:
    """A gateway, and the other server of its two, which has the last partition."""
    other = Backend(FAKE)
    yield make(others={AWAY: other}), other
    await other.close()


@pytest.fixture
async def losing(make: Make, leaving: RealServer) -> AsyncIterator[Gateway]:
    """A gateway whose last partition is on a server that will be stopped."""
    other = Backend(BUNDLED, leaving.url)
    yield make(others={AWAY: other}, backpressure_max_backlog=1200)
    await other.close()


def number(gateway: Gateway, name: str) -> int:
    return gateway.state.lines.partitions.number(name)


async def job_in(gateway: Gateway, partition: int) -> str:
    """Create jobs until one is in the partition."""
    while True:
        job_id = await gateway.create()
        if number(gateway, job_id) == partition:
            return job_id


async def backlogs(gateway: Gateway) -> list[int]:
    return [await line.client.xlen(line.keys.queue) for line in gateway.state.lines]


def kill(server: RealServer) -> None:
    server.process.kill()
    server.process.wait()
