"""A pipelined connection to Redis for the hot path.

redis-py opens it: address, TLS, AUTH, SELECT are its business. Then the transport is ours, and a
command costs one write and one callback, where redis-py's own command path takes several turns
of the event loop and most of a job's price.
"""

from __future__ import annotations

import asyncio
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

from common.aio import STALL_GRACE_S, STALL_THRESHOLD_S
from common.redis.connection import (
    CONNECT_TIMEOUT_S,
    REPLY_TIMEOUT_S,
    TRANSIENT_ERRORS,
    new_connection,
)
from common.redis.failover import WRONG_SERVER_ERRORS, LocatedConnectionMixin

log = logging.getLogger(__name__)

#: Called with the reply as Redis wrote it, or with the error that took its place.
OnReply = Callable[[Any], None]


class CommandClient(Protocol):
    """What the rest of Sluice needs of a connection; tests have one over fakeredis."""

    @property
    def ready(self) -> bool:
        """Whether `send` may be called at once."""

    def send(self, args: tuple[EncodableT, ...], on_reply: OnReply) -> None:
        """Send a command; its reply comes by callback."""

    async def execute_command(self, *args: EncodableT) -> Any:
        """Send a command and wait for its reply, as Redis wrote it."""

    async def aclose(self) -> None:
        """Hang up; the next command connects anew."""


async def send_and_wait(wire: CommandClient, args: tuple[EncodableT, ...]) -> Any:
    """The reply to a command on a ready wire; raises what came in its place."""
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
    """One connection, any number of commands under way, replies in order.

    A command whose caller was canceled still gets its reply, which nobody hears: replies can
    never be mixed up. `block_s` is how long a command may block on purpose; `on_message` gets
    what is published on channels this wire has subscribed to; `client_name` is what CLIENT LIST
    calls it.
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
        #: What the server said when it was not the right one any more.
        self._wrong_server: exceptions.RedisError | None = None

    @property
    def ready(self) -> bool:
        """Whether `send` may be called; `execute_command` connects first where need be."""
        return self._transport is not None

    def send(self, args: tuple[EncodableT, ...], on_reply: OnReply) -> None:
        """Send a command on a ready wire."""
        assert self._transport is not None
        packed = hiredis.pack_command(args)  # type: ignore[arg-type]
        self._pending.append(_PendingReply(on_reply, time.monotonic() + self._timeout_s))
        self._transport.write(packed)
        if self._watchdog is None:
            self._watch(self._timeout_s)

    async def execute_command(self, *args: EncodableT) -> Any:
        """Send a command and wait for its reply; raises what Redis or the network answered."""
        if self._transport is None:
            await self._connect()
            if self._transport is None:  # lost again before it was our turn
                raise exceptions.ConnectionError("closed by Redis as soon as it was open")
        return await send_and_wait(self, args)

    async def aclose(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()
        self._drop(exceptions.ConnectionError("connection closed"))

    async def _connect(self) -> None:
        """Open the connection, once for everybody who waits for it."""
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
        if connection._reader.at_eof():  # that news has gone to redis-py, and will not come again
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
        """Hand each complete reply to whoever waits for it."""
        parser, awaited = self._parser, self._pending
        parser.feed(data)
        try:
            while (reply := parser.gets()) is not False:
                if self._on_message is not None and _is_message(reply):
                    self._on_message(reply[2])
                elif awaited:
                    awaited.popleft().on_reply(reply)
        except exceptions.RedisError as error:
            self._abort(error)
        if self._wrong_server is not None:
            self._abort(self._wrong_server)

    def connection_lost(self, error: Exception | None) -> None:
        """Whoever waits is told; the next command connects anew."""
        self._drop(
            exceptions.ConnectionError(str(error) if error else "connection closed by Redis")
        )

    def _abort(self, error: exceptions.RedisError) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._drop(error)

    def _drop(self, error: exceptions.RedisError) -> None:
        self._transport = None
        if self._opened_by is not None:  # its socket is closed: it has nothing to complain about
            self._opened_by._reader = self._opened_by._writer = None
            self._opened_by = None
        self._wrong_server = None
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        awaited, self._pending = self._pending, deque()
        for waiter in awaited:
            waiter.on_reply(error)

    def _check_overdue(self) -> None:
        """One timer for the whole wire: the oldest command decides."""
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
    """Subscribe, also to `more`, and again whenever the connection was lost, until canceled.

    Messages go to the wire's `on_message`. Some may have been missed whenever `on_subscribed` is
    called; `meanwhile` tells the log how one gets by without them.
    """
    while True:
        try:
            # One by one: each has a reply of its own.
            for each in (channel, *more):
                await wire.execute_command("SUBSCRIBE", each)
            on_subscribed()
            for second in itertools.count(1):
                await asyncio.sleep(1)
                if not wire.ready or second % PING_INTERVAL_S == 0:
                    await wire.execute_command("PING")
                    break
        except Exception as error:  # whatever it is, listening must go on
            unforeseen = not isinstance(error, (RedisError, *TRANSIENT_ERRORS))
            log.warning("%s: %s", meanwhile, error, exc_info=unforeseen)
            await asyncio.sleep(RECONNECT_DELAY_S)
