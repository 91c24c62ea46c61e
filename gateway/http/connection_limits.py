"""Limits that all connections of one server share, and the problems for exceeding them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import sys
import termios
import time
from collections import Counter
from dataclasses import dataclass, field

from sluice.common.process.usage import raise_file_limit
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.http.problems import Problem, retry_headers

log = logging.getLogger("sluice.gateway.access")

#: Seconds between two log lines about too many connections.
WARN_EVERY_S = 10.0
#: Files that a gateway has open besides client connections: Redis, logs, the event loop.
OTHER_FILES = 100
#: Connections to each further partition, which may be on another Redis server.
FILES_PER_PARTITION = 8


@dataclass
class ConnectionLimits:
    """Limits that all connections of one server share, and counts of refusals."""

    max_connections: int
    max_header_bytes: int
    header_timeout_s: float
    #: Seconds within which a client must read part of a response.
    stall_s: float = 30.0
    #: Seconds for which idle connections stay open at shutdown: a request may be under way.
    shutdown_grace_s: float = 1.0
    #: Refusals by problem code, before the request reached the app.
    refused: Counter[str] = field(default_factory=Counter)
    lingering: int = 0
    #: Connections closed because the client read nothing.
    stalled: int = 0
    last_warned: float = 0.0

    @classmethod
    def of(cls, settings: GatewaySettings) -> ConnectionLimits:
        """The limits from the settings."""
        others = OTHER_FILES + FILES_PER_PARTITION * (settings.queue_partitions - 1)
        return cls(
            max_connections=connection_capacity(settings.max_connections, others),
            max_header_bytes=settings.max_header_bytes,
            header_timeout_s=settings.header_timeout_s,
        )

    def warn_limit_reached(self) -> None:
        """Log at most one line every WARN_EVERY_S, not one per connection."""
        now = time.monotonic()
        if now - self.last_warned > WARN_EVERY_S:
            self.last_warned = now
            log.warning("all %d connections are in use; further ones get 503", self.max_connections)


def connection_capacity(connections: int, others: int = OTHER_FILES) -> int:
    """How many connections this process can open besides other files, at most `connections`."""
    soft = raise_file_limit(connections + others)
    if soft >= connections + others:
        return connections
    capacity = max(1, soft - others)
    log.warning(
        "%d connections instead of MAX_CONNECTIONS=%d: this process may open only %d files "
        "(LimitNOFILE= of the unit, or ulimit -n)",
        capacity,
        connections,
        soft,
    )
    return capacity


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Bytes the client has not read yet, in asyncio's buffer and in the kernel's."""
    connection = transport.get_extra_info("socket")
    queued = bytearray(4)
    if connection is not None and sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)


def too_many_connections(most: int) -> Problem:
    detail = f"This gateway has {most} open connections, which is all that MAX_CONNECTIONS allows."
    return Problem(503, "too_many_connections", detail, headers=retry_headers(2.0))


def head_too_long(limit: int) -> Problem:
    """The request line, the headers or a trailer exceed the limit."""
    detail = f"The request line and the headers have more than {limit} bytes."
    return Problem(431, "headers_too_large", detail)


def head_too_slow(limit_s: float) -> Problem:
    """The headers took too long to arrive."""
    return Problem(408, "request_timeout", f"The headers did not arrive within {limit_s:g} s.")


def malformed_request(cause: object) -> Problem:
    """The HTTP parser rejected the request."""
    return Problem(400, "malformed_request", f"This is not a valid HTTP request: {cause}.")
