"""Redis clients with explicit timeouts, retries and limits.

A URL may name one server, a Sentinel set or a Cluster (`sluice.common.redis.addresses`). Each
connection locates its server when it opens.
"""

from __future__ import annotations

import contextlib
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

from sluice.common.redis.addresses import is_multi_host, parse_address
from sluice.common.redis.failover import located_class, located_sync_class
from sluice.common.redis.tls import with_shared_context

#: Redis is unreachable or not ready: every operation of Sluice may safely be repeated.
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
#: Seconds that connecting may take.
CONNECT_TIMEOUT_S = 3.0
#: Seconds that the reply to a non-blocking command may take.
REPLY_TIMEOUT_S = 5.0
#: Connections idle for this many seconds are pinged before use, which detects half-open sockets.
HEALTH_CHECK_S = 30
#: Seconds that a task waits for a free connection before it gets an error.
POOL_WAIT_S = 5.0
#: Reported by CLIENT LIST. redis-py's default is the same, but it scans all installed packages to
#: find its own version.
_DRIVER = DriverInfo(lib_version=redis.__version__)


def async_client(url: str, *, connections: int) -> Redis:
    """A pooled client in bytes mode, for ordinary commands.

    redis-py's retry is off: it would repeat an XADD whose reply was lost, and so add the entry
    twice. The script batcher repeats what may be repeated; its operations are idempotent.
    """
    return Redis.from_pool(_pool(url, connections, REPLY_TIMEOUT_S))


def new_connection(url: str) -> AbstractConnection:
    """A dedicated connection that is not open yet; the caller sets its timeouts."""
    connection: AbstractConnection = _pool(url, 1, None, 0).make_connection()  # type: ignore[no-untyped-call]
    return connection


def sync_client(url: str, *, reply_timeout_s: float = REPLY_TIMEOUT_S) -> redis.Redis:
    """A blocking client, for use in a thread."""
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
    """A connection class that reports a closed transport as a ConnectionError, and whose health
    check accepts every reply."""

    class SturdyConnection(kind):  # type: ignore[misc, valid-type]
        async def send_packed_command(self, *args: Any, **options: Any) -> None:
            try:
                await super().send_packed_command(*args, **options)
            except RuntimeError as error:  # uvloop: the connection was reset while it opened
                await self.disconnect(nowait=True)
                raise exceptions.ConnectionError(str(error)) from error

        async def _send_ping(self) -> None:
            # A server whose disk is full refuses PING but answers reads.
            with contextlib.suppress(exceptions.ResponseError):
                await super()._send_ping()

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
    pool.connection_class = _reset_safe(with_shared_context(pool.connection_class))  # type: ignore[arg-type]
    if address is not None:
        pool.connection_class = located_class(pool.connection_class)  # type: ignore[arg-type]
        pool.connection_kwargs["address"] = address
    return pool


def _keepalive(url: str) -> dict[str, bool]:
    return {} if url.startswith("unix:") else {"socket_keepalive": True}


async def execute_pipeline(pipe: Pipeline) -> list[Any]:
    """The replies of a pipeline, with an exception in place of each permanently failed command.

    Raises TRANSIENT_ERRORS: a server that is not ready, or no longer owns the keys, refuses all
    commands for a while.
    """
    found: list[Any] = await pipe.execute(raise_on_error=False)
    for reply in found:
        if isinstance(reply, TRANSIENT_ERRORS):
            raise reply
    return found
