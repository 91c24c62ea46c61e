"""A pipelined connection to Redis for the hot path.

redis-py opens the connection (address, TLS, AUTH, SELECT). After that this module uses the
transport directly: a command costs one write and one callback, where redis-py's command path takes
several iterations of the event loop and most of the CPU time of a job.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError
from redis.typing import EncodableT

from sluice.common.aio import STALL_GRACE_S, STALL_THRESHOLD_S
from sluice.common.redis.connection import (
    CONNECT_TIMEOUT_S,
    REPLY_TIMEOUT_S,
    TRANSIENT_ERRORS,
    new_connection,
)
from sluice.common.redis.failover import WRONG_SERVER_ERRORS, LocatedConnectionMixin

log = logging.getLogger(__name__)

#: Seconds that closing a connection may take, for unsent data and the end of TLS.
CLOSE_TIMEOUT_S = 1.0
#: Called with the reply, or with the error in its place.
OnReply = Callable[[Any], None]


class CommandClient(Protocol):
    """The interface of a connection; tests implement it with fakeredis."""

    @property
    def ready(self) -> bool:
        """True if `send` may be called now."""

    def send(self, args: tuple[EncodableT, ...], on_reply: OnReply) -> None:
        """Send a command; the callback gets its reply."""

    async def execute_command(self, *args: EncodableT) -> Any:
        """Send a command and return its reply."""

    async def aclose(self) -> None:
        """Close the connection; the next command reconnects."""


async def send_and_wait(wire: CommandClient, args: tuple[EncodableT, ...]) -> Any:
    """The reply to a command on a ready connection; raises the error reply."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_reply(reply: Any) -> None:
        if answered.done():
            return
        if isinstance(reply, Exception):
            answered.set_exception(reply)
        else:
            answered.set_result(reply)

    wire.send(args, on_reply)
    return await answered


class _PendingReply(NamedTuple):
    on_reply: OnReply
    due: float


class PipelinedConnection(asyncio.Protocol):
    """One connection with any number of pending commands; replies arrive in order.

    A command whose caller was canceled still consumes its reply, so replies cannot be mixed up.
    `block_s` is the longest time that a command blocks on purpose, in seconds; `on_message` gets
    messages published on subscribed channels; `client_name` is shown by CLIENT LIST.
    """

    def __init__(
        self,
        url: str,
        *,
        block_s: float = 0.0,
        reply_timeout_s: float | None = None,
        on_message: Callable[[bytes], None] | None = None,
        client_name: str | None = None,
    ) -> None:
        self._url = url
        self._on_message = on_message
        self._client_name = client_name
        self._timeout_s = (reply_timeout_s or REPLY_TIMEOUT_S) + block_s
        self._pending: deque[_PendingReply] = deque()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._opened_by: AbstractConnection | None = None
        self._parser = hiredis.Reader()
        self._watchdog: asyncio.TimerHandle | None = None
        self._watchdog_due = 0.0
        #: The error by which the server showed that it is no longer the right one.
        self._wrong_server: exceptions.RedisError | None = None

    @property
    def ready(self) -> bool:
        """True if `send` may be called; `execute_command` connects first if necessary."""
        return self._transport is not None

    def send(self, args: tuple[EncodableT, ...], on_reply: OnReply) -> None:
        """Send a command on a ready connection."""
        assert self._transport is not None
        packed = hiredis.pack_command(args)  # type: ignore[arg-type]
        self._pending.append(_PendingReply(on_reply, time.monotonic() + self._timeout_s))
        self._transport.write(packed)
        if self._watchdog is None:
            self._watch(self._timeout_s)

    async def execute_command(self, *args: EncodableT) -> Any:
        """Send a command and return its reply; raises errors of Redis and of the network."""
        if self._transport is None:
            await self._connect()
            if self._transport is None:  # lost again before this task resumed
                raise exceptions.ConnectionError("closed by Redis as soon as it was open")
        return await send_and_wait(self, args)

    async def aclose(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        transport = self._transport
        closing = _ClosingProtocol()
        if transport is not None:
            transport.set_protocol(closing)
            transport.close()
        self._drop(exceptions.ConnectionError("connection closed"))
        if transport is not None:
            await closing.wait(transport)

    async def _connect(self) -> None:
        """Open the connection, once for all waiting tasks."""
        if self._connecting is None:
            self._connecting = asyncio.ensure_future(self._open())
            self._connecting.add_done_callback(self._connected)
        await asyncio.shield(self._connecting)

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()

    async def _open(self) -> None:
        connection = new_connection(self._url)
        if self._client_name is not None:
            connection.client_name = self._client_name
        try:
            await asyncio.wait_for(connection.connect(), CONNECT_TIMEOUT_S)  # type: ignore[no-untyped-call]
        except asyncio.TimeoutError:
            raise exceptions.TimeoutError(
                f"no connection within {CONNECT_TIMEOUT_S:.0f} s"
            ) from None
        assert connection._writer is not None
        assert connection._reader is not None
        if connection._reader.at_eof():  # redis-py got the EOF; this protocol would not
            raise exceptions.ConnectionError("closed by Redis during the handshake")
        transport = cast(asyncio.Transport, connection._writer.transport)
        self._parser = hiredis.Reader(
            protocolError=exceptions.InvalidResponse, replyError=self._error_reader(connection)
        )
        self._opened_by = connection  # its StreamWriter closes the socket when collected
        transport.set_protocol(self)
        self._transport = transport

    def _error_reader(self, connection: AbstractConnection) -> Callable[[str], Exception]:
        parse_error: Callable[[str], Exception] = connection._parser.parse_error
        if not isinstance(connection, LocatedConnectionMixin):
            return parse_error

        def read_error(text: str) -> Exception:
            error = parse_error(text)
            if isinstance(error, WRONG_SERVER_ERRORS):
                connection.invalidate(error)
                self._wrong_server = error
            return error

        return read_error

    # -- asyncio.Protocol ------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass each complete reply to its callback."""
        parser, pending = self._parser, self._pending
        parser.feed(data)
        try:
            while (reply := parser.gets()) is not False:
                if self._on_message is not None and _is_message(reply):
                    self._on_message(reply[2])
                elif pending:
                    pending.popleft().on_reply(reply)
        except exceptions.RedisError as error:
            self._abort(error)
        if self._wrong_server is not None:
            self._abort(self._wrong_server)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all pending commands; the next command reconnects."""
        self._drop(
            exceptions.ConnectionError(str(error) if error else "connection closed by Redis")
        )

    def _abort(self, error: exceptions.RedisError) -> None:
        if self._transport is not None:
            self._transport.set_protocol(_ClosingProtocol())
            self._transport.abort()
        self._drop(error)

    def _drop(self, error: exceptions.RedisError) -> None:
        self._transport = None
        if self._opened_by is not None:  # avoids its ResourceWarning: the socket is closed
            self._opened_by._reader = self._opened_by._writer = None
            self._opened_by = None
        self._wrong_server = None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        pending, self._pending = self._pending, deque()
        for command in pending:
            command.on_reply(error)

    def _check_overdue(self) -> None:
        """One timer serves all commands: the oldest decides."""
        self._watchdog = None
        if not self._pending:
            return
        now = time.monotonic()
        left_s = self._pending[0].due - now
        if left_s > 0:
            self._watch(left_s)
        elif now - self._watchdog_due > STALL_THRESHOLD_S:
            self._watch(STALL_GRACE_S)
        else:
            self._abort(exceptions.TimeoutError(f"no reply within {self._timeout_s:.0f} s"))

    def _watch(self, seconds: float) -> None:
        self._watchdog_due = time.monotonic() + seconds
        self._watchdog = asyncio.get_running_loop().call_later(seconds, self._check_overdue)


class _ClosingProtocol(asyncio.Protocol):
    """Gets the last callbacks of a closed transport, which must not reach the next connection.

    With TLS they come after a round trip, or much later if the server does not respond.
    """

    def __init__(self) -> None:
        self._lost = asyncio.Event()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()

    async def wait(self, transport: asyncio.Transport) -> None:
        """Wait until the transport is closed; abort it after CLOSE_TIMEOUT_S."""
        try:
            await asyncio.wait_for(self._lost.wait(), CLOSE_TIMEOUT_S)
        except asyncio.TimeoutError:
            transport.abort()


def _is_message(reply: Any) -> bool:
    return isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message"


RECONNECT_DELAY_S = 0.5
PING_INTERVAL_S = 10


async def keep_subscribed(
    wire: CommandClient,
    channel: str,
    on_subscribed: Callable[[], None],
    meanwhile: str,
    more: Sequence[str] = (),
) -> None:
    """Subscribe to `channel` and `more`, and again whenever the connection was lost.

    Runs until canceled. Messages go to the connection's `on_message`. Whenever `on_subscribed` is
    called, messages may have been missed. `meanwhile` is logged with each connection error and
    says how the process copes without messages.
    """
    while True:
        try:
            # One command each, because each channel has a separate reply.
            for each in (channel, *more):
                await wire.execute_command("SUBSCRIBE", each)
            on_subscribed()
            for second in itertools.count(1):
                await asyncio.sleep(1)
                if not wire.ready or second % PING_INTERVAL_S == 0:
                    with contextlib.suppress(exceptions.ResponseError):  # refused: disk full
                        await wire.execute_command("PING")
                    break
        except Exception as error:  # must survive any error
            unforeseen = not isinstance(error, (RedisError, *TRANSIENT_ERRORS))
            log.warning("redis: %s; %s", error, meanwhile, exc_info=unforeseen)
            await asyncio.sleep(RECONNECT_DELAY_S)
