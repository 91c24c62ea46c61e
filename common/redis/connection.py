"""Redis clients with every timeout, retry and limit said out loud.

A URL may name one server, a Sentinel set or a Cluster (`common.redis.addresses`): each connection
finds
its server when it opens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import redis
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from common.redis.addresses import is_multi_host, parse_address
from common.redis.failover import located_class, located_sync_class

#: Redis is away, or not itself yet: every operation of ours may safely be sent again.
TRANSIENT_ERRORS = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,  # and MASTERDOWN
    exceptions.AskError,  # and MOVED
    exceptions.TryAgainError,
    OSError,
)
#: How long a connection attempt may take.
CONNECT_TIMEOUT_S = 3.0
#: How long a reply may take when the command itself does not block.
REPLY_TIMEOUT_S = 5.0
#: Idle connections are pinged this often before use, which finds half-open sockets.
HEALTH_CHECK_S = 30
#: How long a task waits for a free connection before it is told there is none.
POOL_WAIT_S = 5.0
#: What CLIENT LIST calls us. redis-py says the same of itself, but looks through all that is
#: installed to find its version.
_DRIVER = DriverInfo(lib_version=redis.__version__)


def async_client(url: str, *, connections: int) -> Redis:
    """A pooled client in bytes mode, for ordinary commands.

    The library's own retry is off: it would send an XADD again whose reply was lost, and double
    it. What may be repeated is repeated by the batcher, whose operations are idempotent.
    """
    return Redis.from_pool(_pool(url, connections, REPLY_TIMEOUT_S))


def new_connection(url: str) -> AbstractConnection:
    """A connection of its own, not opened yet; the caller sets its own time limits."""
    connection: AbstractConnection = _pool(url, 1, None, 0).make_connection()  # type: ignore[no-untyped-call]
    return connection


def sync_client(url: str, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> redis.Redis:
    """A client for a thread of its own."""
    address = parse_address(url) if is_multi_host(url) else None
    client: redis.Redis = redis.Redis.from_url(
        url if address is None else address.data_url(address.seeds[0]),
        socket_timeout=reply_timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        health_check_interval=HEALTH_CHECK_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
        driver_info=_DRIVER,
        **_keepalive(url),
    )
    if address is not None:
        pool = client.connection_pool
        pool.connection_class = located_sync_class(pool.connection_class)
        pool.connection_kwargs["address"] = address
    return client


@lru_cache
def _reset_safe(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """A connection class that knows a closed transport when it sees one."""

    class SturdyConnection(kind):  # type: ignore[misc, valid-type]
        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            try:
                await super().send_packed_command(*args, **options)
            except RuntimeError as error:  # uvloop's word for a connection reset while it opened
                await self.disconnect(nowait=True)
                raise exceptions.ConnectionError(str(error)) from error

    return SturdyConnection


def _pool(
    url: str, connections: int, reply_timeout_s: float | None, health_check_s: int = HEALTH_CHECK_S
) -> BlockingConnectionPool:
    address = parse_address(url) if is_multi_host(url) else None
    pool = BlockingConnectionPool.from_url(
        url if address is None else address.data_url(address.seeds[0]),
        max_connections=connections,
        timeout=POOL_WAIT_S,
        socket_timeout=reply_timeout_s,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        health_check_interval=health_check_s,
        retry=AsyncRetry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
        driver_info=_DRIVER,
        **_keepalive(url),
    )
    pool.connection_class = _reset_safe(pool.connection_class)  # type: ignore[arg-type]
    if address is not None:
        pool.connection_class = located_class(pool.connection_class)  # type: ignore[arg-type]
        pool.connection_kwargs["address"] = address
    return pool


def _keepalive(url: str) -> dict[str, bool]:
    return {} if url.startswith("unix:") else {"socket_keepalive": True}


async def execute_pipeline(pipe: Pipeline) -> list[Any]:
    """What a server says, with an exception in place of what it refuses for good.

    A server that is not itself, or has not got the keys any more, refuses everything for a while:
    that is raised, as if it did not answer.
    """
    found: list[Any] = await pipe.execute(raise_on_error=False)
    for reply in found:
        if isinstance(reply, TRANSIENT_ERRORS):
            raise reply
    return found
