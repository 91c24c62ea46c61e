"""What the connections of one server share: bounds, and the answers to who breaks them."""

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

from common.process.usage import raise_file_limit
from common.settings.gateway import GatewaySettings
from gateway.http.problems import Problem, retry_headers

log = logging.getLogger("gateway.access")

#: Seconds between two log lines about the same flood.
WARN_EVERY_S = 10.0
#: Files that a gateway has open besides its clients' connections: Redis, logs, the loop's own.
OTHER_FILES = 100
#: Connections of each partition more than the first, which may be on a server of its own.
FILES_PER_PARTITION = 8


@dataclass
class ConnectionLimits:
    """What the connections of one server share: bounds, and what was turned away."""

    max_connections: int
    max_header_bytes: int
    header_timeout_s: float
    #: Seconds in which something of an answer must be read.
    stall_s: float = 30.0
    #: Seconds that quiet connections get, at the end, for a request that is on its way.
    shutdown_grace_s: float = 1.0
    #: How often each problem was answered here, before there was a request.
    refused: Counter[str] = field(default_factory=Counter)
    lingering: int = 0
    #: Connections cut off because the client read nothing.
    stalled: int = 0
    last_warned: float = 0.0

    @classmethod
    def of(cls, settings: GatewaySettings) -> ConnectionLimits:
        """The door that the settings describe."""
        others = OTHER_FILES + FILES_PER_PARTITION * (settings.queue_partitions - 1)
        return cls(
            max_connections=connection_capacity(settings.max_connections, others),
            max_header_bytes=settings.max_header_bytes,
            header_timeout_s=settings.header_timeout_s,
        )

    def warn_limit_reached(self) -> None:
        """One log line now and then; a line for each connection would be a flood too."""
        now = time.monotonic()
        if now - self.last_warned > WARN_EVERY_S:
            self.last_warned = now
            log.warning("all %d connections are taken; more get 503", self.max_connections)


def connection_capacity(connections: int, others: int = OTHER_FILES) -> int:
    """How many connections this process can have open at once beside other files, up to so many."""
    soft = raise_file_limit(connections + others)
    if soft >= connections + others:
        return connections
    room = max(1, soft - others)
    log.warning(
        "room for %d connections, not for MAX_CONNECTIONS=%d: this process may open %d files only "
        "(LimitNOFILE= of the unit, or ulimit -n)",
        room,
        connections,
        soft,
    )
    return room


def unsent_bytes(transport: asyncio.Transport) -> int:
    """What a client has not taken yet: in our buffer, and in the kernel's, which is the larger."""
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
    """A request line, headers or a trailer without end."""
    detail = f"The request line and the headers have more than the {limit} bytes that are allowed."
    return Problem(431, "headers_too_large", detail)


def head_too_slow(limit_s: float) -> Problem:
    """A client that takes its time, or holds on to ours."""
    return Problem(408, "request_timeout", f"The headers did not come within {limit_s:g} s.")


def malformed_request(cause: object) -> Problem:
    """The parser cannot make sense of it."""
    return Problem(400, "malformed_request", f"This is no HTTP request: {cause}.")
