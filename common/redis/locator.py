"""Finds the server a connection is for: Sentinel's master, or the owner of a Cluster's slot.

Asked anew whenever a connection opens, so that a failover needs nothing but a hang-up. What is
asked and learnt is written once, as a generator of questions; the async and the sync way differ
only in how they put one.
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

from common.redis.addresses import CLUSTER_SLOTS, Node, RedisAddress, Topology

#: How long one server may take to say where the data is. Whoever does not is asked last next time.
ASK_TIMEOUT_S = 1.0
#: For so long an answer serves all connections of the process: after a failover they all come back
#: at once.
CACHE_TTL_S = 0.5
#: What keeps one server from answering, and lets another be asked.
LOOKUP_ERRORS = (exceptions.RedisError, asyncio.TimeoutError, OSError)


class LocatorQuery(NamedTuple):
    """A command for a server, which gets a connection of its own for it."""

    url: str
    command: tuple[str, ...]


class _SlotRange(NamedTuple):
    first: int
    last: int
    owner: Node


_Queries = Generator[LocatorQuery, Any, None]


class ServerLocator:
    """What this process knows of one set of servers: whom to ask, and the last answer.

    Shared by threads; every change replaces a whole tuple.
    """

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._nodes = address.seeds
        self._ranges: tuple[_SlotRange, ...] = ()
        self._answered_by: Node | None = None
        self._until = 0.0
        #: Who asks, in each event loop: all its connections wait for the same answer.
        self.refreshing: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
            WeakKeyDictionary()
        )

    def cached_owner(self, slot: int) -> Node | None:
        """The answer, where it is young and nobody doubts it."""
        return self._owner(slot) if time.monotonic() < self._until else None

    def require_owner(self, slot: int) -> Node:
        """The answer that was just given."""
        owner = self._owner(slot)
        if owner is None:
            raise exceptions.ConnectionError(f"no node of the Cluster serves slot {slot}")
        return owner

    def owners(self) -> tuple[tuple[Node, ...], int]:
        """Who owns slots by the last answer, and how many slots nobody owns."""
        ranges = self._ranges
        missing = CLUSTER_SLOTS - sum(last - first + 1 for first, last, _ in ranges)
        return tuple(dict.fromkeys(owner for _, _, owner in ranges)), missing

    def invalidate(self, node: Node, hint: Node | None = None) -> None:
        """The server at `node` is not what we were told, or away; `hint` may know better."""
        told_by = self._answered_by
        if any(owner == node for _, _, owner in self._ranges):
            self._until, self._ranges, self._answered_by = 0.0, (), None
            if told_by is not None:
                self._move_last(told_by)
        if hint is not None:
            self._move_first(hint)

    def queries(self) -> _Queries:
        """Ask one after the other until one has an answer; a ConnectionError says why none had."""
        sentinel = self._address.kind is Topology.SENTINEL
        command = ("CLUSTER", "SLOTS")
        if sentinel:
            command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)  # type: ignore[assignment]
        faults: list[str] = []
        refused = 0
        nodes = self._nodes
        for node in nodes:
            try:
                reply = yield LocatorQuery(self._address.discovery_url(node), command)
                ranges = _master(reply) if sentinel else _slots(reply, node)
            except LOOKUP_ERRORS as error:
                refused += isinstance(error, exceptions.AuthenticationError)
                faults.append(f"{node}: {error or 'no answer in time'}")
            else:
                if ranges:
                    self._learn(node, ranges, () if sentinel else _members(reply, node))
                    return
                unknown = f"knows no master {self._address.service!r}"
                faults.append(f"{node} {unknown if sentinel else 'serves no slots'}")
            self._move_last(node)
        whose = "sentinel" if sentinel else "node of the Cluster"
        everywhere = refused == len(nodes)
        kind = exceptions.AuthenticationError if everywhere else exceptions.ConnectionError
        raise kind(f"no {whose} tells where to go ({'; '.join(faults)})")

    def _owner(self, slot: int) -> Node | None:
        for first, last, owner in self._ranges:
            if first <= slot <= last:
                return owner
        return None

    def _learn(
        self, told_by: Node, ranges: tuple[_SlotRange, ...], members: tuple[Node, ...]
    ) -> None:
        # Seeds stay: they may be names of many machines, or the only addresses we can reach.
        self._nodes = tuple(dict.fromkeys((told_by, *self._address.seeds, *members)))
        self._ranges, self._answered_by = ranges, told_by
        self._until = time.monotonic() + CACHE_TTL_S

    def _move_last(self, node: Node) -> None:
        self._nodes = (*(other for other in self._nodes if other != node), node)

    def _move_first(self, node: Node) -> None:
        self._nodes = (node, *(other for other in self._nodes if other != node))


@lru_cache(maxsize=64)
def locator_for(whole: RedisAddress) -> ServerLocator:
    """What is known of a set of servers (`Address.whole`)."""
    return ServerLocator(whole)


async def locate(address: RedisAddress) -> Node:
    """The server that a connection is for."""
    known = locator_for(address.server_set)
    slot = address.slot
    node = known.cached_owner(slot)
    if node is not None:
        return node
    await refresh(known)
    return known.require_owner(slot)


async def refresh(known: ServerLocator) -> None:
    """Ask, once for everybody in this loop who wants to know."""
    loop = asyncio.get_running_loop()
    asking = known.refreshing.get(loop)
    if asking is None or asking.done():
        asking = known.refreshing[loop] = loop.create_task(_refresh(known))
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.shield(asking)


def locate_sync(address: RedisAddress) -> Node:
    """The server that a connection is for; blocks."""
    known = locator_for(address.server_set)
    slot = address.slot
    node = known.cached_owner(slot)
    if node is not None:
        return node
    _refresh_sync(known)
    return known.require_owner(slot)


def survey_cluster(address: RedisAddress) -> tuple[tuple[Node, ...], int]:
    """All servers that own slots, and how many slots have no owner; blocks."""
    known = locator_for(address.server_set)
    _refresh_sync(known)
    return known.owners()


async def _refresh(known: ServerLocator) -> None:
    questions = known.queries()
    try:
        question = next(questions)
        while True:
            try:
                reply = await asyncio.wait_for(_send_query(question), ASK_TIMEOUT_S)
            except LOOKUP_ERRORS as error:
                question = questions.throw(error)
            else:
                question = questions.send(reply)
    except StopIteration:
        return


def _refresh_sync(known: ServerLocator) -> None:
    questions = known.queries()
    try:
        question = next(questions)
        while True:
            try:
                reply = _send_query_sync(question)
            except LOOKUP_ERRORS as error:
                question = questions.throw(error)
            else:
                question = questions.send(reply)
    except StopIteration:
        return


async def _send_query(question: LocatorQuery) -> Any:
    pool = redis.asyncio.ConnectionPool.from_url(
        question.url,
        socket_connect_timeout=ASK_TIMEOUT_S,
        retry=AsyncRetry(NoBackoff(), 0),
        driver_info=None,
        protocol=2,
    )
    connection: Any = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        await connection.connect()
        await connection.send_command(*question.command)
        return await connection.read_response()
    finally:
        await connection.disconnect(nowait=True)


def _send_query_sync(question: LocatorQuery) -> Any:
    pool = redis.ConnectionPool.from_url(
        question.url,
        socket_timeout=ASK_TIMEOUT_S,
        socket_connect_timeout=ASK_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
        protocol=2,
    )
    connection: Any = pool.make_connection()
    try:
        connection.connect()
        connection.send_command(*question.command)
        return connection.read_response()
    finally:
        connection.disconnect()


def _master(reply: Any) -> tuple[_SlotRange, ...]:
    """A sentinel's answer: the master owns all there is. None where it knows no such name."""
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
    """All nodes in CLUSTER SLOTS; replicas know where to go as well as masters do."""
    servers = (_server(server, asked) for _, _, *servers in reply for server in servers)
    return tuple(dict.fromkeys(node for node in servers if node is not None))


def _server(server: Any, asked: Node) -> Node | None:
    """A node that does not know its own address is meant where we reached the one we asked."""
    host = _text(server[0] or b"")
    if host == "?":  # it should be called by a name that it was not given
        return None
    return Node(host or asked.host, int(server[1]))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
