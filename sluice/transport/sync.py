"""The HTTP transport of the blocking client, over `http.client`.

The blocking client of httpx2 needs about 70 ms more CPU time to import and open, which would double
the start-up time of a command such as `sluice ls`. This client therefore uses only the standard
library, and the two transports are maintained separately.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from sluice.errors import Broken
from sluice.transport.request import (
    MAX_RESPONSE_BYTES,
    Request,
    Response,
    error_from,
    not_a_gateway,
    redirect_target,
    request_headers,
    too_large,
    unreachable,
)

_CHUNK_BYTES = 64 * 1024
_MAX_IDLE = 4

sleep = time.sleep


def read_file(path: Path) -> bytes:
    return path.read_bytes()


class StreamedResponse:
    """A response whose body is read in chunks."""

    def __init__(self, url: str, response: http.client.HTTPResponse) -> None:
        self._url = url
        self._response = response
        self.status = response.status
        self.headers = _headers(response)

    def chunks(self) -> Iterator[bytes]:
        """The body in chunks; raises Broken if the connection breaks before the end."""
        while chunk := _read(self._url, self._response.read1, _CHUNK_BYTES):
            yield chunk

    def lines(self) -> Iterator[bytes]:
        while line := _read(self._url, self._response.readline, MAX_RESPONSE_BYTES):
            yield line


class Transport:
    """HTTP connections to one gateway. Thread-safe."""

    def __init__(self, url: str, api_key: str, timeout_s: float) -> None:
        self.url = url
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []

    def send(self, request: Request[Any]) -> Response:
        """Send a request and read the whole response; raises Refused for an error status."""
        response = self._receive(request, self._timeout_s + request.wait_s)
        redirect = redirect_target(self.url, request, response)
        if redirect is None:
            return response
        # The target is an object store, which must not receive the API key.
        url, request = redirect
        other = Transport(url, "", self._timeout_s)
        try:
            return other.send(request)
        finally:
            other.close()

    @contextmanager
    def open(self, request: Request[Any], silence_s: float) -> Iterator[StreamedResponse]:
        """Send a request and stream the response; `silence_s` is the read timeout in seconds."""
        connection = self._connect(silence_s)
        try:
            response = self._exchange(connection, request, silence_s)
            streamed = StreamedResponse(self.url, response)
            if streamed.status >= 400:
                deadline = time.monotonic() + self._timeout_s
                body = self._read_body(connection, response, deadline)
                raise error_from(self.url, Response(streamed.status, streamed.headers, body))
            yield streamed
        finally:
            connection.close()

    def close(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()

    def _take_idle(self) -> http.client.HTTPConnection | None:
        with suppress(IndexError):  # another thread may take the last one at any time
            return self._idle.pop()
        return None

    def _receive(self, request: Request[Any], timeout_s: float) -> Response:
        deadline = time.monotonic() + timeout_s
        connection, response = self._start(request, timeout_s)
        try:
            body = self._read_body(connection, response, deadline)
        except BaseException:
            connection.close()
            raise
        if response.will_close or len(self._idle) >= _MAX_IDLE:
            connection.close()
        else:
            response.close()  # http.client does not detect the end of a body read in chunks
            self._idle.append(connection)
        return Response(response.status, _headers(response), body)

    def _start(
        self, request: Request[Any], timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        # The gateway may have closed an idle connection. Then it is unknown whether it received the
        # request, so idle connections are used for idempotent requests only.
        deadline = time.monotonic() + timeout_s
        idle = self._take_idle() if request.idempotent else None
        if idle is not None:
            try:
                return idle, self._exchange(idle, request, timeout_s)
            except Broken:
                if time.monotonic() >= deadline:  # a timeout, not a closed connection
                    raise
        connection = self._connect(timeout_s)
        return connection, self._exchange(connection, request, timeout_s)

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        connection = _connection(self.url, min(timeout_s, self._timeout_s))
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:
            connection.close()
            raise unreachable(self.url, error) from None
        return connection

    def _exchange(
        self, connection: http.client.HTTPConnection, request: Request[Any], timeout_s: float
    ) -> http.client.HTTPResponse:
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            headers = request_headers(request, self._api_key)
            path = urlsplit(self.url).path + request.path
            # The gateway may refuse a request before it has read the whole body; its response
            # is still readable.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(request.method, path, request.body, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            _raise(self.url, error)
        except BaseException:
            connection.close()
            raise

    def _read_body(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        deadline: float,
    ) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                _raise(self.url, socket.timeout("timed out"))
            if connection.sock is not None:
                connection.sock.settimeout(left_s)
            chunk = _read(self.url, response.read1, _CHUNK_BYTES)
            if not chunk:
                if response.length:  # http.client does not report a truncated body
                    _raise(self.url, http.client.IncompleteRead(b""))
                response.close()
                return b"".join(chunks)
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_RESPONSE_BYTES:
                raise too_large(self.url)


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    # No proxy from the environment: it may not reach a gateway in the local network.
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)


def _read(url: str, read: Callable[[int], bytes], size: int) -> bytes:
    try:
        return read(size)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        _raise(url, error)  # ValueError and AttributeError: a chunk without a valid size


def _raise(url: str, error: Exception) -> NoReturn:
    if isinstance(error, (http.client.IncompleteRead, http.client.RemoteDisconnected)):
        raise Broken(f"the connection to {url} broke; try again") from None
    if isinstance(error, http.client.HTTPException):
        raise not_a_gateway(url) from None
    if isinstance(error, socket.timeout):
        raise Broken(f"{url} did not respond in time; try again") from None
    raise Broken(f"the connection to {url} broke ({error}); try again") from None
