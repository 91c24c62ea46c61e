"""Connections that find their server as they open, and hang up when it is the wrong one by now."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import redis.connection
from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from common.addresses import Address, Kind, Node
from common.master_watch import watch
from common.whereabouts import find, find_sync, whereabouts

#: The server has no say in the matter any more; who opens anew finds the one that has.
ELSEWHERE = (exceptions.MovedError, exceptions.ReadOnlyError, exceptions.ClusterDownError)
#: Every service may ask this, other than ROLE.
_ROLE = ("INFO", "replication")
_MASTER = b"role:master"


class Located:
    """A connection whose address names a set of servers; `node` is the one it went to."""

    address: Address
    node: Node | None = None

    def doubt(self, error: Exception | None = None) -> None:
        """The server was not what we were told: the next connection asks anew, and another."""
        if self.node is None:
            return
        hint = None
        if isinstance(error, exceptions.MovedError):
            hint = Node(error.host or self.node.host, error.port)
        whereabouts(self.address.whole).doubt(self.node, hint)

    def _no_master(self) -> exceptions.ConnectionError:
        self.doubt()
        return exceptions.ConnectionError(f"{self.node} is not the master of {self.address}")


@lru_cache
def located(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """A connection class that takes an `address` to find its server with."""

    class LocatedConnection(Located, kind):  # type: ignore[misc, valid-type]
        def __init__(self, *, address: Address, **options: Any) -> None:
            self.address = address
            super().__init__(**options)

        async def _connect(self) -> None:
            self.node = self.host, self.port = await find(self.address)
            try:
                await super()._connect()
            except Exception:
                self.doubt()
                raise
            if self.address.kind is Kind.SENTINEL:
                watch(self.address, self)

        def hang_up(self) -> None:
            if self._writer is not None:
                self._writer.transport.abort()

        async def on_connect_check_health(self, check_health: bool = True) -> None:
            await super().on_connect_check_health(check_health=check_health)
            if self.address.kind is Kind.SENTINEL:
                await self.send_command(*_ROLE, check_health=False)
                try:
                    role = await self.read_response(disable_decoding=True)
                except exceptions.NoPermissionError:
                    return
                if _MASTER not in role:
                    raise self._no_master()

        async def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return await super().read_response(*args, **options)
            except ELSEWHERE as error:
                self.doubt(error)
                await self.disconnect(nowait=True)
                raise

    return LocatedConnection


@lru_cache
def located_sync(
    kind: type[redis.connection.AbstractConnection],
) -> type[redis.connection.AbstractConnection]:
    """The same for a thread of its own."""

    class LocatedConnection(Located, kind):  # type: ignore[misc, valid-type]
        def __init__(self, *, address: Address, **options: Any) -> None:
            self.address = address
            super().__init__(**options)

        def _connect(self) -> Any:
            self.node = self.host, self.port = find_sync(self.address)
            try:
                return super()._connect()
            except Exception:
                self.doubt()
                raise

        def on_connect_check_health(self, check_health: bool = True) -> None:
            super().on_connect_check_health(check_health=check_health)
            if self.address.kind is Kind.SENTINEL:
                self.send_command(*_ROLE, check_health=False)
                try:
                    role = self.read_response(disable_decoding=True)
                except exceptions.NoPermissionError:
                    return
                if _MASTER not in role:
                    raise self._no_master()

        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except ELSEWHERE as error:
                self.doubt(error)
                self.disconnect()
                raise

    return LocatedConnection
