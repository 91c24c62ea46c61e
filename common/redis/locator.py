"""Locates the server for a connection: the master in Sentinel, or the owner of a Cluster slot.

Every new connection looks its server up, so after a failover it is enough to close the old ones.
The lookup is written once, as a generator of queries; the async and blocking variants differ only
in how they send one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluice.common.redis.addresses import CLUSTER_SLOTS, Node, RedisAddress, Topology
from sluice.common.redis.tls import certificate_error, with_shared_context

#: Seconds that one server may take to answer a query. One that does not is queried last next time.
ASK_TIMEOUT_S = 1.0
#: Seconds that an answer is shared by all connections of the process, which all reconnect at once
#: after a failover.
CACHE_TTL_S = 0.5
#: Errors after which the next server is queried.
LOOKUP_ERRORS = (exceptions.RedisError, asyncio.TimeoutError, OSError)


class LocatorQuery(NamedTuple):
    """A command for one server, sent on a separate connection."""

    url: str
    command: tuple[str, ...]


class _SlotRange(NamedTuple):
    first: int
    last: int
    owner: Node


_Queries = Generator[LocatorQuery, Any, None]


class ServerLocator:
    """The cached location of one set of servers, and the servers to query.

    Shared by threads: every change replaces a whole tuple.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._nodes = address.seeds
        self._ranges: tuple[_SlotRange, ...] = ()
        self._answered_by: Node | None = None
        self._until = 0.0
        #: The lookup in progress per event loop; all its connections wait for the same one.
        self.refreshing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            WeakKeyDictionary()
        )

    def cached_owner(self, slot: int) -> Node | None:
        """The owner of a slot; None if it is unknown or the cache has expired."""
        return self._owner(slot) if time.monotonic() < self._until else None

    def require_owner(self, slot: int) -> Node:
        """The owner of a slot, after a lookup; raises ConnectionError if it has none."""
        owner = self._owner(slot)
        if owner is None:
            raise exceptions.ConnectionError(f"no node of the Cluster serves slot {slot}")
        return owner

    def owners(self) -> tuple[tuple[Node, ...], int]:
        """All slot owners found by the last lookup, and the number of slots without an owner."""
        ranges = self._ranges
        missing = CLUSTER_SLOTS - sum(last - first + 1 for first, last, _ in ranges)
        return tuple(dict.fromkeys(owner for _, _, owner in ranges)), missing

    def invalidate(self, node: Node, hint: Node | None = None) -> None:
        """Discard the location if it names `node`; `hint` is queried first next time."""
        source = self._answered_by
        if any(owner == node for _, _, owner in self._ranges):
            self._until, self._ranges, self._answered_by = 0.0, (), None
            if source is not None:
                self._move_last(source)
        if hint is not None:
            self._move_first(hint)

    def queries(self) -> _Queries:
        """Query the servers in turn until one answers; raises ConnectionError if none does."""
        sentinel = self._address.kind is Topology.SENTINEL
        command = ("CLUSTER", "SLOTS")
        if sentinel:
            command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)  # type: ignore[assignment]
        faults: list[str] = []
        refused = 0
        untrusted: list[Exception] = []
        nodes = self._nodes
        for node in nodes:
            try:
                reply = yield LocatorQuery(self._address.discovery_url(node), command)
                ranges = _master(reply) if sentinel else _slots(reply, node)
            except LOOKUP_ERRORS as error:
                refused += isinstance(error, exceptions.AuthenticationError)
                if certificate_error(error) is not None:
                    untrusted.append(error)
                faults.append(f"{node}: {error or 'no answer in time'}")
            else:
                if ranges:
                    self._learn(node, ranges, () if sentinel else _members(reply, node))
                    return
                unknown = f"knows no master {self._address.service!r}"
                faults.append(f"{node} {unknown if sentinel else 'serves no slots'}")
            self._move_last(node)
        role = "sentinel" if sentinel else "node of the Cluster"
        everywhere = refused == len(nodes)
        kind = exceptions.AuthenticationError if everywhere else exceptions.ConnectionError
        cause = untrusted[0] if len(untrusted) == len(nodes) else None
        raise kind(f"no {role} could locate the server ({'; '.join(faults)})") from cause

    def _owner(self, slot: int) -> Node | None:
        for first, last, owner in self._ranges:
            if first <= slot <= last:
                return owner
        return None

    def _learn(
        self, source: Node, ranges: tuple[_SlotRange, ...], members: tuple[Node, ...]
    ) -> None:
        # The seeds are kept: they may be DNS names of many machines, or the only reachable ones.
        self._nodes = tuple(dict.fromkeys((source, *self._address.seeds, *members)))
        self._ranges, self._answered_by = ranges, source
        self._until = time.monotonic() + CACHE_TTL_S

    def _move_last(self, node: Node) -> None:
        self._nodes = (*(other for other in self._nodes if other != node), node)

    def _move_first(self, node: Node) -> None:
        self._nodes = (node, *(other for other in self._nodes if other != node))


@lru_cache(maxsize=64)
def locator_for(whole: RedisAddress) -> ServerLocator:
    """The locator of a set of servers (`RedisAddress.server_set`)."""
    return ServerLocator(whole)


async def locate(address: RedisAddress) -> Node:
    """The server for a connection."""
    known = locator_for(address.server_set)
    slot = address.slot
    node = known.cached_owner(slot)
    if node is not None:
        return node
    await refresh(known)
    return known.require_owner(slot)


async def refresh(known: ServerLocator) -> None:
    """Look the location up, once for all tasks of this event loop."""
    loop = asyncio.get_running_loop()
    task = known.refreshing.get(loop)
    if task is None or task.done():
        task = known.refreshing[loop] = loop.create_task(_refresh(known))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)


def locate_sync(address: RedisAddress) -> Node:
    """The server for a connection; blocks."""
    known = locator_for(address.server_set)
    slot = address.slot
    node = known.cached_owner(slot)
    if node is not None:
        return node
    _refresh_sync(known)
    return known.require_owner(slot)


def survey_cluster(address: RedisAddress) -> tuple[tuple[Node, ...], int]:
    """All servers that own slots, and the number of slots without an owner; blocks."""
    known = locator_for(address.server_set)
    _refresh_sync(known)
    return known.owners()


async def _refresh(known: ServerLocator) -> None:
    queries = known.queries()
    try:
        query = next(queries)
        while True:
            try:
                reply = await asyncio.wait_for(_send_query(query), ASK_TIMEOUT_S)
            except LOOKUP_ERRORS as error:
                query = queries.throw(error)
            else:
                query = queries.send(reply)
    except StopIteration:
        return


def _refresh_sync(known: ServerLocator) -> None:
    queries = known.queries()
    try:
        query = next(queries)
        while True:
            try:
                reply = _send_query_sync(query)
            except LOOKUP_ERRORS as error:
                query = queries.throw(error)
            else:
                query = queries.send(reply)
    except StopIteration:
        return


async def _send_query(query: LocatorQuery) -> Any:
    pool = redis.asyncio.ConnectionPool.from_url(
        query.url,
        socket_connect_timeout=ASK_TIMEOUT_S,
        retry=AsyncRetry(NoBackoff(), 0),
        driver_info=None,
        protocol=2,
    )
    pool.connection_class = with_shared_context(pool.connection_class)  # type: ignore[arg-type]
    connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        await connection.connect()
        await connection.send_command(*query.command)
        return await connection.read_response()
    finally:
        await connection.disconnect(nowait=True)


def _send_query_sync(query: LocatorQuery) -> Any:
    pool = redis.ConnectionPool.from_url(
        query.url,
        socket_timeout=ASK_TIMEOUT_S,
        socket_connect_timeout=ASK_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
        protocol=2,
    )
    connection: Any = pool.make_connection()
    try:
        connection.connect()
        connection.send_command(*query.command)
        return connection.read_response()
    finally:
        connection.disconnect()


def _master(reply: Any) -> tuple[_SlotRange, ...]:
    """A sentinel's answer as one range of all slots; empty if it does not know the name."""
    if reply is None:
        return ()
    host, port = reply
    return (_SlotRange(0, CLUSTER_SLOTS - 1, Node(_text(host), int(port))),)


def _slots(reply: Any, asked: Node) -> tuple[_SlotRange, ...]:
    """CLUSTER SLOTS: first, last, owner, replicas."""
    return tuple(
        _SlotRange(int(first), int(last), owner)
        for first, last, server, *_ in reply
        if (owner := _server(server, asked)) is not None
    )


def _members(reply: Any, asked: Node) -> tuple[Node, ...]:
    """All nodes in CLUSTER SLOTS; replicas can be queried as well as masters."""
    servers = (_server(server, asked) for _, _, *servers in reply for server in servers)
    return tuple(dict.fromkeys(node for node in servers if node is not None))


def _server(server: Any, asked: Node) -> Node | None:
    """A node of a reply; one that does not know its own address is the queried node."""
    host = _text(server[0] or b"")
    if host == "?":  # announces a host name, but none is configured
        return None
    return Node(host or asked.host, int(server[1]))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
