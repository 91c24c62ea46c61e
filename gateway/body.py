"""A request's body on its way in: bounded in length and in time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, Final, NamedTuple

from starlette.types import Message, Receive

from gateway.problems import Problem

TOO_LARGE = 413


class Rest(NamedTuple):
    """How much of a refused body is read and thrown away, and for how long."""

    size_bytes: int
    seconds: float


USUAL_REST: Final = Rest(16 << 20, 2.0)


class Body:
    """A request's body on its way in: counted, timed, and refused at the first byte too many."""

    complete = False
    _received = 0
    _timed = False
    _is_late = False
    #: Whether somebody waits for the next piece: who does something else is told when it does.
    _is_waiting = False
    #: Whether nobody waits for what still comes of it.
    _is_given_up = False
    #: Whether its client keeps it back until it is asked for, and was not yet.
    kept_back = False
    _clock: asyncio.TimerHandle | None = None

    def __init__(
        self, receive: Receive, limit: int, timeout_s: float, rest: Rest | None = None
    ) -> None:
        self._receive: Any = receive
        self._limit = limit
        self._timeout_s = timeout_s
        self._rest = rest or USUAL_REST

    def check_declared(self, headers: dict[bytes, bytes], *, refuse: bool = True) -> None:
        """Refuse a long body by its header, before a byte of it is read.

        `refuse` False: whoever reads it does so, when it knows whose body it is.
        """
        declared = headers.get(b"content-length", b"").lstrip(b"0")
        if b"expect" in headers:
            self.kept_back = True
        if refuse and exceeds(declared, self._limit):
            raise self._too_large()
        self._timed = bool(declared) or b"transfer-encoding" in headers

    async def receive(self) -> Message:
        """ASGI's receive. A body that is here already needs no clock."""
        message: Message
        self.kept_back = False
        if self._is_late:
            raise self._too_slow()
        if self._timed:
            receiving = self._receive()
            try:
                waiting_for = receiving.send(None)
            except StopIteration as done:
                message = done.value
            else:
                self._is_waiting = True
                try:
                    message = await self._receive_in_time(receiving, waiting_for)
                finally:
                    self._is_waiting = False
        else:
            message = await self._receive()
        if message["type"] == "http.request":
            if not message.get("more_body"):
                self.complete = True
                self.stop_clock()
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                raise self._too_large()
        return message

    async def _receive_in_time(
        self, receiving: Coroutine[Any, Any, Message], waiting_for: Any
    ) -> Message:
        """One clock for the whole body."""
        task = asyncio.current_task()
        assert task is not None
        if self._clock is None:
            loop = asyncio.get_running_loop()
            self._clock = loop.call_later(self._timeout_s, self._ring, task)
        try:
            return await _rest_of(receiving, waiting_for)
        except asyncio.CancelledError:
            if not self._is_late:
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise self._too_slow() from None

    def _ring(self, task: asyncio.Task[object]) -> None:
        self._is_late = True
        if self._is_waiting:
            task.cancel()

    def stop_clock(self) -> None:
        """The body is whole, or nobody waits for it any more."""
        self._timed = False
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def give_up(self) -> None:
        """There is no time to read the rest of it."""
        self._is_given_up = True

    async def discard(self) -> None:
        """Read what still comes of a refused body, and throw it away."""
        if self.kept_back or self._is_late or self._is_given_up:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._discard(), self._rest.seconds)

    async def _discard(self) -> None:
        left = self._rest.size_bytes
        while left > 0:
            message = await self._receive()
            if message["type"] != "http.request" or not message.get("more_body"):
                return
            left -= len(message.get("body", b""))

    def _too_large(self) -> Problem:
        return too_large(self._limit)

    def _too_slow(self) -> Problem:
        return Problem(
            408,
            "request_timeout",
            f"The body did not come within {self._timeout_s:g} s.",
            headers={"Connection": "close"},
        )


def exceeds(declared: bytes, limit: int) -> bool:
    """Whether a Content-Length, without leading zeros, is more than that."""
    return declared.isdigit() and (len(declared) > 18 or int(declared) > limit)


def too_large(limit: int) -> Problem:
    """What follows on the connection is the rest of it, so that closes."""
    return Problem(
        TOO_LARGE,
        "body_too_large",
        f"The body is longer than {limit} bytes.",
        headers={"Connection": "close"},
    )


@coroutine
def _rest_of(begun: Coroutine[Any, Any, Message], waiting_for: Any) -> Generator[Any, Any, Message]:
    """What is left of a coroutine that was begun by hand and found to wait."""
    try:
        while True:
            try:
                value = yield waiting_for
            except BaseException as error:
                waiting_for = begun.throw(error)
            else:
                waiting_for = begun.send(value)
    except StopIteration as done:
        message: Message = done.value
        return message
