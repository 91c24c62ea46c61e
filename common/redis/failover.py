"""Connections that locate their server when they open, and close when the master changes."""

from __future__ import annotations

import asyncio
import logging
from functools import lru_cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import redis.connection
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from sluice.common.redis.addresses import Node, RedisAddress, Topology
from sluice.common.redis.locator import (
    LOOKUP_ERRORS,
    ServerLocator,
    locate,
    locate_sync,
    locator_for,
    refresh,
)

log = logging.getLogger(__name__)

#: Seconds between two queries of the sentinels.
WATCH_INTERVAL_S = 1.0


class WatchedConnection(Protocol):
    """An open connection and the server to which it is connected."""

    node: Node | None

    @property
    def is_connected(self) -> bool:
        """True while the connection is open."""

    def hang_up(self) -> None:
        """Close it, even while in use: its users get a connection error and reconnect."""


class _MasterWatch:
    """Watches the master of one Sentinel set in one event loop; ends with the last connection."""

    def __init__(self, known: ServerLocator) -> None:
        self._known = known
        self._open: WeakSet[WatchedConnection] = WeakSet()
        self._running: asyncio.Task[None] | None = None

    def add(self, connection: WatchedConnection) -> None:
        self._open.add(connection)
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            for connection in [each for each in self._open if not each.is_connected]:
                self._open.discard(connection)
            if not self._open:
                return
            try:
                await refresh(self._known)
                master = self._known.require_owner(0)
            except LOOKUP_ERRORS:
                continue  # no new information: keep the connections
            self._drop_all_except(master)

    def _drop_all_except(self, master: Node) -> None:
        stale = [connection for connection in self._open if connection.node != master]
        for connection in stale:
            self._open.discard(connection)
            connection.hang_up()
        if stale:
            log.warning("redis: the master is now %s; closed %d connections", master, len(stale))


_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RedisAddress, _MasterWatch]] = (
    WeakKeyDictionary()
)


def watch_master(address: RedisAddress, connection: WatchedConnection) -> None:
    """Close the connection when the sentinels report a master other than its server."""
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    whole = address.server_set
    if whole not in watches:
        watches[whole] = _MasterWatch(locator_for(whole))
    watches[whole].add(connection)


#: The server no longer accepts writes for these keys; a new connection finds the right server.
WRONG_SERVER_ERRORS = (exceptions.MovedError, exceptions.ReadOnlyError, exceptions.ClusterDownError)
#: INFO rather than ROLE: every Redis user of an installation may run it.
_ROLE = ("INFO", "replication")
_MASTER = b"role:master"


class LocatedConnectionMixin:
    """A connection to one of the servers of `address`; `node` is the one it is connected to."""

    address: RedisAddress
    node: Node | None = None

    def invalidate(self, error: Exception | None = None) -> None:
        """Discard the cached location: the next connection looks it up again elsewhere."""
        if self.node is None:
            return
        hint = None
        if isinstance(error, exceptions.MovedError):
            hint = Node(error.host or self.node.host, error.port)
        locator_for(self.address.server_set).invalidate(self.node, hint)

    def _not_master_error(self) -> exceptions.ConnectionError:
        self.invalidate()
        return exceptions.ConnectionError(f"{self.node} is not the master of {self.address}")


@lru_cache
def located_class(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """A connection class that locates its server by `address`."""

    class LocatedConnection(LocatedConnectionMixin, kind):  # type: ignore[misc, valid-type]
        def __init__(self, *, address: RedisAddress, **options: Any) -> None:
            self.address = address
            super().__init__(**options)

        async def _connect(self) -> None:
            self.node = self.host, self.port = await locate(self.address)
            try:
                await super()._connect()
            except Exception:
                self.invalidate()
                raise
            if self.address.kind is Topology.SENTINEL:
                watch_master(self.address, self)

        def hang_up(self) -> None:
            if self._writer is not None:
                self._writer.transport.abort()

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            await super().on_connect_check_health(check_health=check_health)
            if self.address.kind is Topology.SENTINEL:
                await self.send_command(*_ROLE, check_health=False)
                try:
                    role = await self.read_response(disable_decoding=True)
                except exceptions.NoPermissionError:
                    return
                if _MASTER not in role:
                    raise self._not_master_error()

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return await super().read_response(*args, **options)
            except WRONG_SERVER_ERRORS as error:
                self.invalidate(error)
                await self.disconnect(nowait=True)
                raise

    return LocatedConnection


@lru_cache
def located_sync_class(
    kind: type[redis.connection.AbstractConnection],
) -> type[redis.connection.AbstractConnection]:
    """The blocking variant of `located_class`."""

    class LocatedConnection(LocatedConnectionMixin, kind):  # type: ignore[misc, valid-type]
        def __init__(self, *, address: RedisAddress, **options: Any) -> None:
            self.address = address
            super().__init__(**options)

        def _connect(self) -> Any:
            self.node = self.host, self.port = locate_sync(self.address)
            try:
                return super()._connect()
            except Exception:
                self.invalidate()
                raise

        def on_connect_check_health(self, check_health: bool = True) -> None:
            super().on_connect_check_health(check_health=check_health)
            if self.address.kind is Topology.SENTINEL:
                self.send_command(*_ROLE, check_health=False)
                try:
                    role = self.read_response(disable_decoding=True)
                except exceptions.NoPermissionError:
                    return
                if _MASTER not in role:
                    raise self._not_master_error()

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except WRONG_SERVER_ERRORS as error:
                self.invalidate(error)
                self.disconnect()
                raise

    return LocatedConnection
