"""uvicorn's HTTP protocol with limits.

uvicorn does not limit the size and duration of a request's head, the number of connections, or
how long a response may wait for its reader. This protocol does, and answers with problems. A
request that arrives in one piece costs nothing extra.

`uvicorn sluice.gateway.main:app`, started by hand, uses uvicorn's own protocol, without these
limits.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import TimerHandle
from typing import ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from sluice.common.aio import STALL_GRACE_S, timer_is_late
from sluice.gateway.http import security
from sluice.gateway.http.connection_limits import (
    ConnectionLimits,
    head_too_long,
    head_too_slow,
    malformed_request,
    too_many_connections,
    unsent_bytes,
)
from sluice.gateway.http.problems import MEDIA_TYPE, Problem
from sluice.gateway.jobs.ids import new_request_id

log = logging.getLogger("sluice.gateway.access")

#: Pipelined requests that may wait behind the current one; further ones are not read.
PIPELINE_MAX = 64
#: Bytes of a body that are read and discarded after the response was sent.
DISCARD_BYTES = 16 << 20
#: Seconds a client whose request was not read to its end has to read the response, and most such
#: clients at a time.
LINGER_S = 3.0
LINGERING_MAX = 256
#: Bytes of a response that a client must read within `stall_s`.
STALL_BYTES = 32_768


def protocol_for(limits: ConnectionLimits) -> type[LimitedHttpProtocol]:
    """The protocol class for `uvicorn.Config(http=…)`."""
    return type("Protocol", (LimitedHttpProtocol,), {"limits": limits})


class _Refusal(Exception):
    """Raised to leave the parser in the middle of its input."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class _ResponseTransport:
    """The transport of a connection, as uvicorn's request cycle uses it.

    The cycle closes the connection after a response with `Connection: close`. If the client still
    sends its request, the kernel answers with a reset, and the client may lose the response. So the
    protocol decides how to close.
    """

    __slots__ = ("_protocol", "_transport", "write")

    def __init__(self, transport: asyncio.Transport, protocol: LimitedHttpProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self.write = transport.write

    def close(self) -> None:
        self._protocol.close_after_response()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. The class attributes are the initial state of every connection."""

    limits: ClassVar[ConnectionLimits]

    #: Between a request's first byte and the end of its headers.
    _head_open = False
    #: Bytes of that head so far; outside a head, bytes of a trailer.
    _head_bytes = 0
    #: True if further input is discarded.
    _discarding = False
    _stopping = False
    _lingers = False
    _running: RequestResponseCycle | None = None
    _responses: _ResponseTransport
    _head_timer: TimerHandle | None = None
    _stall_timer: TimerHandle | None = None
    _last_timer: TimerHandle | None = None
    _unsent = 0

    # Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or answer 503 if there are too many."""
        super().connection_made(transport)
        self._responses = _ResponseTransport(transport, self)
        if len(self.connections) > self.limits.max_connections:
            self.connections.discard(self)
            self.limits.warn_limit_reached()
            self._refuse(too_many_connections(self.limits.max_connections))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify running requests that the client has disconnected, including pipelined ones."""
        for timer in (self._head_timer, self._stall_timer, self._last_timer):
            if timer is not None:
                timer.cancel()
        self._discarding = True
        self._unset_keepalive_if_required()
        if self._lingers:
            self._lingers = False
            self.limits.lingering -= 1
        running = self._running
        if running is not None and running is not self.cycle and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Serve requests that are under way or may still arrive, then close."""
        self._stopping = True
        if self.cycle is not None and not self.cycle.response_complete:
            super().shutdown()
            return
        left_s = self.limits.shutdown_grace_s
        idle = self.timeout_keep_alive_task
        if idle is not None:  # the client may have sent another request since the last response
            left_s += idle.when() - self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._close_after(left_s)
        else:
            self._close()

    def _close_after(self, left_s: float) -> None:
        self._last_timer = self.loop.call_later(left_s, self._close_unless_serving)

    def _close_unless_serving(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if timer_is_late(self._last_timer):
            self._close_after(STALL_GRACE_S)
        else:
            self._close()

    # Input

    def data_received(self, data: bytes) -> None:
        """Parse input within the limits."""
        if self._discarding:
            return
        self._unset_keepalive_if_required()
        limit, before, was_open = self.limits.max_header_bytes, self.cycle, self._head_open
        try:
            if was_open or len(data) > limit or (before is not None and before.more_body):
                self._parse_in_pieces(data, limit)
            else:  # the usual case: one or several complete requests
                self.parser.feed_data(data)
                if self._head_open:
                    self._head_bytes = len(data) if before is self.cycle else self._parsed_bytes()
        except httptools.HttpParserUpgrade:
            # Upgrades are not supported, and the parser has stopped: answer and close.
            self._discarding = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.problem if isinstance(cause, _Refusal) else malformed_request(error))
        except _Refusal as refusal:
            self._refuse(refusal.problem)
        if self._head_open or self.cycle is None or self.cycle.response_complete:
            self._await_head()

    def _parse_in_pieces(self, data: bytes, limit: int) -> None:
        """Parse at most as many bytes at a time as one head may still have."""
        start = 0
        while start < len(data) and not self._discarding:
            size = limit - self._head_bytes if self._head_open else limit
            if size <= 0:
                raise _Refusal(head_too_long(limit))
            self._parse(data[start : start + size])
            start += size

    def _parse(self, piece: bytes) -> None:
        """Parse a piece, and count the bytes that the parser keeps."""
        before, was_open = self.cycle, self._head_open
        in_body = before is not None and before.more_body
        body_bytes = len(before.body) if in_body else 0
        self.parser.feed_data(piece)
        if not self._head_open:
            if was_open:
                self._head_bytes = 0
            elif in_body and before is self.cycle and before.more_body:
                self._count_trailer(before, len(piece), len(before.body) > body_bytes)
        elif before is not self.cycle or in_body:  # behind another request in the same piece
            self._head_bytes = self._parsed_bytes()
        else:
            self._head_bytes = len(piece) + (self._head_bytes if was_open else 0)

    def _parsed_bytes(self) -> int:
        """Bytes of the current head, without the incomplete header."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _count_trailer(self, cycle: RequestResponseCycle, size: int, is_body: bool) -> None:
        """Count bytes after the head that are not body, such as a trailer."""
        self._head_bytes = 0 if is_body else self._head_bytes + size
        most = DISCARD_BYTES if cycle.response_complete else self.limits.max_header_bytes
        if self._head_bytes > most:
            raise _Refusal(head_too_long(self.limits.max_header_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_open = True
        if self.cycle is not None:  # uvicorn does not record the end of a body that was not read
            self.cycle.more_body = False

    def on_headers_complete(self) -> None:
        """Start to serve a request."""
        self._head_open = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if self.pipeline and len(self.pipeline) >= PIPELINE_MAX:
            raise _Refusal(malformed_request("too many requests in a row"))
        super().on_headers_complete()
        self.cycle.transport = self._responses  # type: ignore[assignment]
        if not self.pipeline:
            self._running = self.cycle
        self.headers = []  # for the trailer; the app has the headers already
        if self._stopping:
            self.cycle.keep_alive = False

    # Timeout of a head

    def _await_head(self) -> None:
        """Start one timer, which further bytes do not reset."""
        if self._head_timer is None and not self._discarding:
            wait_s = self.limits.header_timeout_s
            self._head_timer = self.loop.call_later(wait_s, self._head_is_late)

    def _head_is_late(self) -> None:
        if timer_is_late(self._head_timer):  # only once, so that slow clients are closed in the end
            self._head_timer = self.loop.call_later(STALL_GRACE_S, self._give_up_head)
        else:
            self._give_up_head()

    def _give_up_head(self) -> None:
        self._head_timer = None
        if self._head_open:
            self._refuse(head_too_slow(self.limits.header_timeout_s))
        elif self.cycle is None or self.cycle.response_complete:
            self._close()

    def timeout_keep_alive_handler(self) -> None:
        """The client sent nothing since the last response, or did not read it."""
        if timer_is_late(self.timeout_keep_alive_task):
            self.timeout_keep_alive_task = self.loop.call_later(STALL_GRACE_S, self._close)
        else:
            self._close()

    # Responses

    def on_response_complete(self) -> None:
        """The response is written, but perhaps not yet read."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        super().on_response_complete()
        if self._lingers:
            self._unset_keepalive_if_required()
        elif self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._watch_reader()
        elif self._head_open:
            self._unset_keepalive_if_required()  # the next request has begun already

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_reader(self) -> None:
        if self._stall_timer is None:
            self._unsent = unsent_bytes(self.transport)
            self._stall_timer = self.loop.call_later(self.limits.stall_s, self._check_reader)

    def _check_reader(self) -> None:
        """Close the connection of a client that reads (almost) nothing."""
        self._stall_timer = None
        if not self.transport.get_write_buffer_size():
            return
        if self._unsent - unsent_bytes(self.transport) < STALL_BYTES:
            self.limits.stalled += 1
            self.transport.abort()
        else:
            self._watch_reader()

    def close_after_response(self) -> None:
        """Close once all is sent; first read what the client still sends of its request."""
        current = self._running
        unread = self._discarding or (current is not None and current.more_body)
        if unread and not self.pipeline and not self.flow.write_paused:
            self._linger()
        else:
            self.transport.close()

    def _close(self) -> None:
        """Close once all is sent, or after a timeout."""
        if self.transport.is_closing():
            return
        self._discarding = True
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._watch_reader()

    # Refusals

    def _refuse(self, problem: Problem) -> None:
        """Stop reading; send the problem, unless another response has already begun."""
        if self._discarding or self.transport.is_closing():
            return
        self._discarding = True
        self.limits.refused[problem.code] += 1
        cycle = self.cycle
        if cycle is None or (cycle.response_complete and not cycle.more_body):
            self._answer(problem)
        elif not cycle.more_body:  # complete requests are under way and are answered first
            cycle.keep_alive = False
        elif cycle.response_started or self.pipeline:
            self._close()
        else:  # the error is in the body of the current request
            cycle.disconnected = True
            cycle.message_event.set()
            self._answer(problem)

    def _answer(self, problem: Problem) -> None:
        request_id = new_request_id()
        log.info("refused %d %s request_id=%s", problem.status, problem.code, request_id)
        body = problem.body("/", request_id)
        lines = [
            *self.server_state.default_headers,
            *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", request_id.encode()),
            *security.missing_security_headers(()),
        ]
        head = b"".join(b"%b: %b\r\n" % line for line in lines)
        self.transport.write(STATUS_LINE[problem.status] + head + b"\r\n" + body)
        self._linger()

    def _linger(self) -> None:
        """Close after the client does: closing with unread input would discard the response."""
        if self._lingers or self.transport.is_closing():
            return
        self._discarding = True
        if self.limits.lingering >= LINGERING_MAX:
            self._close()
            return
        self._lingers = True
        self.limits.lingering += 1
        self.flow.resume_reading()
        self.transport.write_eof()
        self._last_timer = self.loop.call_later(LINGER_S, self._close)
