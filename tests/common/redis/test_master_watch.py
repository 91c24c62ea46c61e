"""Connections to a replaced master are closed, although it still answers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from common.redis import failover, locator
from common.redis.addresses import Node, parse_address
from common.redis.failover import watch_master
from common.redis.locator import LocatorQuery
from tests.support.waiting import eventually

ADDRESS = parse_address("redis+sentinel://a:1/mymaster")
OLD, NEW = Node("old", 1), Node("new", 2)


@dataclass(eq=False)
class Connection:
    """An open connection to a server."""

    node: Node | None = OLD
    is_connected: bool = True

    def hang_up(self) -> None:
        self.is_connected = False


class Sentinel:
    """Reports a master, or none."""

    master: Node | None = OLD
    asked = 0

    async def put(self, question: LocatorQuery) -> Any:
        self.asked += 1
        if self.master is None:
            raise OSError("nobody is there")
        return [self.master.host.encode(), str(self.master.port).encode()]


@pytest.fixture
def sentinel(monkeypatch: pytest.MonkeyPatch) -> Sentinel:
    sentinel = Sentinel()
    monkeypatch.setattr(locator, "_send_query", sentinel.put)
    monkeypatch.setattr(failover, "WATCH_INTERVAL_S", 0.001)
    locator.locator_for.cache_clear()
    return sentinel


async def test_only_connections_to_the_old_master_are_closed(sentinel: Sentinel) -> None:
    old, late, new = Connection(), Connection(), Connection(NEW)
    watch_master(ADDRESS, old)
    await eventually(lambda: sentinel.asked > 2)
    assert old.is_connected
    sentinel.master = NEW
    await eventually(lambda: not old.is_connected)  # from now on every reply names the new master
    watch_master(ADDRESS, new)
    watch_master(ADDRESS, late)
    await eventually(lambda: not late.is_connected)
    assert new.is_connected
    new.is_connected = False


async def test_without_a_sentinel_no_connection_is_closed(sentinel: Sentinel) -> None:
    connection = Connection()
    sentinel.master = None
    watch_master(ADDRESS, connection)
    await eventually(lambda: sentinel.asked > 2)
    assert connection.is_connected
    connection.is_connected = False


async def test_the_watch_ends_with_the_last_connection(sentinel: Sentinel) -> None:
    before = asyncio.all_tasks()
    connection = Connection()
    watch_master(ADDRESS, connection)
    assert asyncio.all_tasks() != before
    connection.is_connected = False
    await eventually(lambda: asyncio.all_tasks() == before)
    again = Connection()
    watch_master(ADDRESS, again)
    sentinel.master = NEW
    await eventually(lambda: not again.is_connected)
    await eventually(lambda: asyncio.all_tasks() == before)
