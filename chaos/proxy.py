"""A middleman between one process and Redis, which can do to their talk what networks do."""

from __future__ import annotations

import asyncio
import contextlib

_CHUNK = 1 << 16
#: Replies to these are worth losing: something may have been changed or handed out.
_WORTH_LOSING = (b"EVAL", b"XREADGROUP", b"XCLAIM", b"XAUTOCLAIM")
#: Nothing came of a blocking read.
_NOTHING = b"*-1\r\n"


class _Talk:
    """One connection and its counterpart to Redis."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        #: No reply gets through any more, for ever: bytes that were swallowed cannot be made up.
        self.deaf = False
        #: Nor does a request.
        self.mute = False
        self.last_request = b""

    def abort(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class Proxy:
    """Listens on a loopback port of its own and passes on to Redis, as long as nothing is wrong."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._talks: set[_Talk] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies_to_lose = 0
        self._delay_s = 0.0
        self._deaf = self._mute = False
        self.port = 0
        self.lost_replies = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Hang up for good."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- faults ----------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every connection."""
        for talk in list(self._talks):
            talk.abort()

    def lose(self, replies: int) -> None:
        """The next so many answers to changes are lost together with their connection."""
        self._replies_to_lose += replies

    def delay(self, seconds: float) -> None:
        """From now on every piece of data is so late; 0 for no more."""
        self._delay_s = seconds

    def silence(self, *, requests_pass: bool) -> None:
        """Connections look open and bring nothing, those that are there and those to come."""
        self._deaf, self._mute = True, not requests_pass
        for talk in self._talks:
            talk.deaf, talk.mute = True, talk.mute or not requests_pass

    def speak(self) -> None:
        """New connections work again; whoever has an old one must find out by himself."""
        self._deaf = self._mute = False

    def heal(self) -> None:
        """No more faults from now on."""
        self._replies_to_lose = 0
        self._delay_s = 0.0
        self.speak()

    # -- passing on ------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        talk = _Talk(writer, far)
        talk.deaf, talk.mute = self._deaf, self._mute
        self._talks.add(talk)
        requests = asyncio.create_task(self._requests(reader, talk))
        replies = asyncio.create_task(self._replies(far_reader, talk))
        for task in (requests, replies):
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.wait({requests, replies})
        self._talks.discard(talk)

    async def _requests(self, reader: asyncio.StreamReader, talk: _Talk) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s / 2)
                if not talk.mute:
                    talk.last_request = data
                    talk.far.write(data)
        talk.near.transport.abort()
        # Across a dead network Redis would not hear of the hang-up either.
        if not talk.mute:
            talk.far.transport.abort()

    async def _replies(self, reader: asyncio.StreamReader, talk: _Talk) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s / 2)
                if talk.deaf:
                    continue
                if self._replies_to_lose and _is_worth_losing(talk.last_request, data):
                    self._replies_to_lose -= 1
                    self.lost_replies += 1
                    break
                talk.near.write(data)
        if not talk.deaf:
            talk.abort()


def _is_worth_losing(request: bytes, reply: bytes) -> bool:
    return reply != _NOTHING and any(word in request[:64] for word in _WORTH_LOSING)
