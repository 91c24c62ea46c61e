"""A proxy between one process and Redis that simulates network faults."""

from __future__ import annotations

import asyncio
import contextlib

_CHUNK = 1 << 16
#: Commands that change data or deliver messages: only their replies are dropped.
_LOSABLE = (b"EVAL", b"XREADGROUP", b"XCLAIM", b"XAUTOCLAIM")
#: Reply of a blocking read that timed out.
_TIMED_OUT = b"*-1\r\n"


class _Connection:
    """A client connection and the connection to Redis behind it."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        #: Drops all replies from now on, permanently: skipped bytes cannot be replaced.
        self.drops_replies = False
        #: Drops all requests, too.
        self.drops_requests = False
        self.last_request = b""

    def abort(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class Proxy:
    """Listens on its own loopback port and forwards to Redis."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies_to_lose = 0
        self._delay_s = 0.0
        self._drop_replies = self._drop_requests = False
        self.port = 0
        self.lost_replies = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- faults ----------------------------------------------------------------------------

    def cut(self) -> None:
        """Resets every connection."""
        for connection in list(self._connections):
            connection.abort()

    def lose(self, replies: int) -> None:
        """Drops the next replies to changes together with their connections."""
        self._replies_to_lose += replies

    def delay(self, seconds: float) -> None:
        """Delays every packet by this time; 0 for no delay."""
        self._delay_s = seconds

    def drop(self, *, requests_pass: bool) -> None:
        """Makes existing and new connections half-open: they stay open, but no reply arrives."""
        self._drop_replies, self._drop_requests = True, not requests_pass
        for connection in self._connections:
            connection.drops_replies, connection.drops_requests = (
                True,
                connection.drops_requests or not requests_pass,
            )

    def stop_dropping(self) -> None:
        """New connections work again; old ones stay half-open, and the client must detect that."""
        self._drop_replies = self._drop_requests = False

    def heal(self) -> None:
        """Ends all faults."""
        self._replies_to_lose = 0
        self._delay_s = 0.0
        self.stop_dropping()

    # -- forwarding --------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection(writer, far)
        connection.drops_replies, connection.drops_requests = (
            self._drop_replies,
            self._drop_requests,
        )
        self._connections.add(connection)
        requests = asyncio.create_task(self._requests(reader, connection))
        replies = asyncio.create_task(self._replies(far_reader, connection))
        for task in (requests, replies):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.wait({requests, replies})
        self._connections.discard(connection)

    async def _requests(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s / 2)
                if not connection.drops_requests:
                    connection.last_request = data
                    connection.far.write(data)
        connection.near.transport.abort()
        # With a dead network, Redis would not receive the close of the connection either.
        if not connection.drops_requests:
            connection.far.transport.abort()

    async def _replies(self, reader: asyncio.StreamReader, connection: _Connection) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s / 2)
                if connection.drops_replies:
                    continue
                if self._replies_to_lose and _is_losable(connection.last_request, data):
                    self._replies_to_lose -= 1
                    self.lost_replies += 1
                    break
                connection.near.write(data)
        if not connection.drops_replies:
            connection.abort()


def _is_losable(request: bytes, reply: bytes) -> bool:
    return reply != _TIMED_OUT and any(word in request[:64] for word in _LOSABLE)
