"""Request bodies: limits on size and time, JSON parsing and validation."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from sluice.common import codec
from sluice.gateway.http.problems import Problem, validation_problem
from sluice.gateway.state import state_of

TOO_LARGE = 413


class DiscardLimits(NamedTuple):
    """How much of a refused body is read and discarded, and for how long."""

    size_bytes: int
    seconds: float


DEFAULT_DISCARD_LIMITS: Final = DiscardLimits(16 << 20, 2.0)


class Body:
    """Wraps ASGI's receive; refuses a body that is too long or arrives too slowly."""

    complete = False
    _received = 0
    _timed = False
    _is_late = False
    #: True while a call of `receive` waits. A timeout at another time is raised by the next call.
    _is_waiting = False
    #: True once the server stops: the rest of the body is not awaited.
    _is_given_up = False
    #: True while the client waits for `100 Continue` before it sends the body.
    awaits_continue = False
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, receive: Receive, limit: int, timeout_s: float, rest: DiscardLimits | None = None
    ) -> None:
        self._receive: Any = receive
        self._limit = limit
        self._timeout_s = timeout_s
        self._discard_limits = rest or DEFAULT_DISCARD_LIMITS

    def check_declared(self, headers: dict[bytes, bytes], *, refuse: bool = True) -> None:
        """Refuse a body that is too long by its Content-Length, before it is read.

        `refuse` False: the route checks the length itself, after it has authorised the request.
        """
        declared = headers.get(b"content-length", b"").lstrip(b"0")
        if b"expect" in headers:
            self.awaits_continue = True
        if refuse and exceeds(declared, self._limit):
            raise self._too_large()
        self._timed = bool(declared) or b"transfer-encoding" in headers

    async def receive(self) -> Message:
        """ASGI's receive. A body that has already arrived needs no timer."""
        message: Message
        self.awaits_continue = False
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
                self.cancel_timeout()
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                raise self._too_large()
        return message

    async def _receive_in_time(
        self, receiving: Coroutine[Any, Any, Message], waiting_for: Any
    ) -> Message:
        """Receive with one timer for the whole body."""
        task = asyncio.current_task()
        assert task is not None
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s, self._on_timeout, task)
        try:
            return await _rest_of(receiving, waiting_for)
        except asyncio.CancelledError:
            if not self._is_late:
                raise
            if sys.version_info >= (3, 11):
                task.uncancel()
            raise self._too_slow() from None

    def _on_timeout(self, task: asyncio.Task[object]) -> None:
        self._is_late = True
        if self._is_waiting:
            task.cancel()

    def cancel_timeout(self) -> None:
        """Stop the timer: the body is complete, or no longer needed."""
        self._timed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def give_up(self) -> None:
        """Stop waiting for the rest of the body."""
        self._is_given_up = True

    async def discard(self) -> None:
        """Read and discard the rest of a refused body."""
        if self.awaits_continue or self._is_late or self._is_given_up:
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._discard(), self._discard_limits.seconds)

    async def _discard(self) -> None:
        left = self._discard_limits.size_bytes
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
            f"The body did not arrive within {self._timeout_s:g} s.",
            headers={"Connection": "close"},
        )


def exceeds(declared: bytes, limit: int) -> bool:
    """True if a Content-Length, without leading zeros, is larger than `limit`."""
    return declared.isdigit() and (len(declared) > 18 or int(declared) > limit)


def too_large(limit: int) -> Problem:
    """The rest of the body would follow on the connection, so it is closed."""
    return Problem(
        TOO_LARGE,
        "body_too_large",
        f"The body is longer than {limit} bytes.",
        headers={"Connection": "close"},
    )


@coroutine
def _rest_of(begun: Coroutine[Any, Any, Message], waiting_for: Any) -> Generator[Any, Any, Message]:
    """Await the rest of a coroutine whose first step was run by hand."""
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


#: Most levels of nested arrays and objects; protects parsers that recurse.
MAX_DEPTH = 64
#: Most objects, arrays and further members of a body, unless MAX_PAYLOAD_BYTES allows more. Parsing
#: and validating an empty array costs a hundred times as much as sending it.
MAX_PARTS: Final = 50_000
#: Bytes of MAX_PAYLOAD_BYTES for each part.
BYTES_PER_PART: Final = 4


async def read_json(request: Request) -> Any:
    """The parsed body; raises the problem of an invalid one."""
    _check_type(request.headers.get("content-type", ""))
    body = await _body(request)
    if not body:
        raise Problem(400, "malformed_json", "The body is empty; send a JSON object.")
    return _value(request, body)


async def read_json_if_any(request: Request) -> Any:
    """The parsed body; an empty object if there is no body, whatever its Content-Type."""
    body = await _body(request)
    if not body:
        return {}
    _check_type(request.headers.get("content-type", ""))
    return _value(request, body)


_Model = TypeVar("_Model", bound=BaseModel)


def parse_body(model: type[_Model], value: Any, within: str = "") -> _Model:
    """Validate parsed JSON; raises a 422 problem that names the invalid members.

    `within`: the member of the body that `value` is.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise validation_problem(error, within) from None


async def _body(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise Problem(400, "incomplete_body", "The connection closed within the body.") from None


def _value(request: Request, body: bytes) -> Any:
    if len(body) > MAX_PARTS:  # a part has at least one byte
        _check_parts(body, most_parts(state_of(request).settings.max_payload_bytes))
    try:
        value = codec.loads(body)
    except ValueError as error:
        raise Problem(400, "malformed_json", f"The body is not JSON: {error}.") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise Problem(
            400, "nested_too_deep", f"The JSON is nested more than {MAX_DEPTH} levels deep."
        )
    return value


def most_parts(max_payload_bytes: int) -> int:
    """How many objects, arrays and further members a body may have."""
    return max(MAX_PARTS, max_payload_bytes // BYTES_PER_PART)


def _check_parts(body: bytes, most: int) -> None:
    """Refuse a body with more parts, before it is parsed. Counting takes milliseconds."""
    if _count_parts(body) > most:
        # The signs may belong to strings, as in a text with many commas.
        plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
        # Each string is a name or a value, so more strings need more parts.
        if (
            plain.count(b'"') // 2 > 2 * most + 1
            or _count_parts(b"".join(plain.split(b'"')[::2])) > most
        ):
            raise Problem(
                400,
                "too_many_parts",
                f"The JSON has more than {most} objects, arrays and further members. Send less at "
                "once, or long data as one string.",
            )


def _count_parts(body: bytes) -> int:
    return body.count(b"{") + body.count(b"[") + body.count(b",")


def _check_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise Problem(
            415,
            "unsupported_media_type",
            "Send the body as JSON, with the header Content-Type: application/json.",
            headers={"Accept-Post": "application/json"},
        )


def _depth(value: Any) -> int:
    """Levels of nested arrays and objects, counted without recursion."""
    level = [value] if isinstance(value, (dict, list)) else []
    depth = 0
    while level:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
    return depth
