"""HTTP over blocking sockets: whole answers, and streams of bytes."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import urljoin, urlsplit

from client.core.calls import Answer, Call, refusal
from client.core.traffic import MOST_BYTES, first_headers, no_gateway, too_long, unreachable
from client.errors import Broken

_PIECE = 64 * 1024
_MOST_IDLE = 4


class Opened:
    """An answer whose body comes piece by piece."""

    def __init__(self, url: str, answer: http.client.HTTPResponse) -> None:
        self._url = url
        self._answer = answer
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}

    def pieces(self) -> Iterator[bytes]:
        """Until the gateway ends it; raises Broken where somebody else does."""
        while piece := _guarded(self._url, self._answer.read1, _PIECE):
            yield piece

    def lines(self) -> Iterator[bytes]:
        """The same, line by line."""
        while line := _guarded(self._url, self._answer.readline, MOST_BYTES):
            yield line


class Transport:
    """Connections to one gateway; any number of threads may use it."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        self.url = url
        self._key = key
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []

    def send(self, call: Call[Any]) -> Answer:
        """Ask and read the whole answer; raises Refused where that says no."""
        deadline = time.monotonic() + self._timeout_s + call.waits_s
        connection, response = self._ask(call, self._timeout_s + call.waits_s)
        try:
            body = self._read(connection, response, deadline)
        except BaseException:
            connection.close()
            raise
        if response.will_close or len(self._idle) >= _MOST_IDLE:
            connection.close()
        else:
            response.close()  # what was read piece by piece http.client does not take for read
            self._idle.append(connection)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return self._checked(call, Answer(response.status, headers, body))

    @contextmanager
    def open(self, call: Call[Any], silence_s: float) -> Iterator[Opened]:
        """The same for an answer that may go on for as long as it likes, if not silently."""
        connection, response = self._ask(call, silence_s, fresh=True)
        try:
            opened = Opened(self.url, response)
            if response.status >= 400:
                body = self._read(connection, response, time.monotonic() + self._timeout_s)
                self._checked(call, Answer(opened.status, opened.headers, body))
            yield opened
        finally:
            connection.close()

    def close(self) -> None:
        """End the connections that wait for another request."""
        while (connection := self._waiting()) is not None:
            connection.close()

    def _waiting(self) -> http.client.HTTPConnection | None:
        """One that waits for another request; another thread may have taken the last."""
        with suppress(IndexError):
            return self._idle.pop()
        return None

    def _ask(
        self, call: Call[Any], timeout_s: float, *, fresh: bool = False
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        # A connection that has waited may be closed at the other end by now; then nobody can say
        # whether the request was heard.
        until = time.monotonic() + timeout_s
        waiting = self._waiting() if call.repeatable and not fresh else None
        if waiting is not None:
            try:
                return waiting, self._exchange(waiting, call, timeout_s)
            except Broken:
                if time.monotonic() >= until:  # it was not closed, it was slow
                    raise
        connection = self._connect(timeout_s)
        return connection, self._exchange(connection, call, timeout_s)

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        connection = _connection(self.url, min(timeout_s, self._timeout_s))
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            raise unreachable(self.url, error) from None
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, call: Call[Any], timeout_s: float
    ) -> http.client.HTTPResponse:
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            headers = first_headers(call, self._key)
            path = urlsplit(self.url).path + call.path
            # It may have said no before it had read all of it.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(call.method, path, call.body, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            _raise(self.url, error)
        except BaseException:
            connection.close()
            raise

    def _read(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        deadline: float,
    ) -> bytes:
        found: list[bytes] = []
        size = 0
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                _raise(self.url, socket.timeout("timed out"))
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
            piece = _guarded(self.url, response.read1, _PIECE)
            if not piece:
                if response.length:  # http.client keeps silent about what is missing
                    _raise(self.url, http.client.IncompleteRead(b""))
                response.close()
                return b"".join(found)
            found.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise too_long(self.url)

    def _checked(self, call: Call[Any], answer: Answer) -> Answer:
        if answer.status >= 400 and answer.status not in call.also_good:
            raise refusal(self.url, answer)
        if answer.status in (301, 302, 303, 307, 308):
            if not call.redirects or "location" not in answer.headers:
                raise no_gateway(self.url)
            return self._elsewhere(urljoin(self.url + call.path, answer.headers["location"]))
        return answer

    def _elsewhere(self, url: str) -> Answer:
        """From a store that has never heard of our key."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise no_gateway(self.url)
        other = Transport(f"{parts.scheme}://{parts.netloc}", "", self._timeout_s)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            return other.send(Call("GET", path, lambda answer: answer))
        finally:
            other.close()


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    # No proxy: one that is set for the internet would not find a gateway near by.
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)


def _guarded(url: str, read: Any, size: int) -> bytes:
    try:
        piece: bytes = read(size)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        _raise(url, error)  # http.client has no better word for a chunk without a size
    return piece


def _raise(url: str, error: Exception) -> NoReturn:
    if isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected)):
        raise Broken(f"the connection to {url} broke; try again") from None
    if isinstance(error, http.client.HTTPException):
        raise no_gateway(url) from None
    if isinstance(error, socket.timeout):
        raise Broken(f"{url} did not answer in time; try again") from None
    raise Broken(f"the connection to {url} broke ({error}); try again") from None
