"""A gateway that sends scripted bytes: it can drop, truncate, delay and reset responses."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

_HEAD = b"\r\n\r\n"


@dataclass
class Request:
    """A request of the client."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """A scripted reply: the bytes to send, and how to end the connection."""

    raw: bytes = b""
    #: Keep the connection open for another request.
    keep: bool = False
    #: Close the connection with a reset.
    reset: bool = False
    #: Respond after the request head, without reading the body.
    early: bool = False
    #: Keep the connection open, without sending more, until the test is over.
    hang: bool = False


def answer(status: int = 200, body: object = None, *, keep: bool = False, **headers: str) -> Reply:
    raw = b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(raw)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append("Content-Type: application/json")
    if not keep:
        lines.append("Connection: close")
    return Reply("\r\n".join(lines).encode() + _HEAD + raw, keep=keep)


def json_lines(*objects: object) -> Reply:
    body = b"".join(json.dumps(each).encode() + b"\n" for each in objects)
    return Reply(b"HTTP/1.1 200 OK\r\nConnection: close" + _HEAD + body)


def problem(status: int, code: str, detail: str = "it says", **headers: str) -> Reply:
    body = {"code": code, "detail": detail, "status": status}
    return answer(status, body, keep=False, **headers)


def stream(*blocks: bytes, cut: bool = False, reset: bool = False, hang: bool = False) -> Reply:
    """Server-sent events in chunks; truncated, or ended normally."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    body = b"".join(b"%x\r\n%b\r\n" % (len(block), block) for block in blocks if block)
    end = b"" if cut or reset or hang else b"0\r\n\r\n"
    return Reply(head + _HEAD + body + end, reset=reset, hang=hang)


def event(event_id: str, kind: str, data: object = None, retry_ms: int | None = None) -> bytes:
    content = json.dumps({"type": kind, "ts": 1, "step": "s", "data": data or {}})
    lines = [f"retry: {retry_ms}"] if retry_ms is not None else []
    lines += [f"id: {event_id}"] if event_id else []
    return "\n".join([*lines, f"event: {kind}", f"data: {content}", "", ""]).encode()


@dataclass
class ScriptedGateway:
    """Sends the replies in order; when none is left, it closes connections without a response."""

    replies: list[Reply] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def url(self) -> str:
        port = self._server.getsockname()[1]
        return f"http://127.0.0.1:{port}" if self.tls is None else f"https://localhost:{port}"

    def respond(self, *replies: Reply) -> None:
        self.replies += replies

    def close(self) -> None:
        self._closed.set()
        # close() alone does not end a blocked accept().
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            for connection in self._open:
                connection.close()
        self._accepting.join(20)
        for thread in self._threads:
            thread.join(20)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        try:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            while self._serve_request(connection):
                pass
        except OSError:
            pass
        finally:
            connection.close()

    def _serve_request(self, connection: socket.socket) -> bool:
        head = _read_head(connection)
        if head is None:
            return False
        first, _, rest = head.partition(b"\r\n")
        method, path, _ = first.decode().split(" ", 2)
        lines = [line.partition(":") for line in rest.decode().splitlines()]
        headers = {name.strip().lower(): value.strip() for name, _, value in lines}
        with self._lock:
            reply = self.replies.pop(0) if self.replies else Reply()
        length = 0 if reply.early else int(headers.get("content-length", 0))
        body = b""
        while len(body) < length:
            body += connection.recv(65536)
        with self._lock:
            self.requests.append(Request(method, path, headers, body))
        connection.sendall(reply.raw)
        if reply.hang:
            self._closed.wait(20)
        if reply.reset:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return reply.keep


def _read_head(connection: socket.socket) -> bytes | None:
    head = b""
    while not head.endswith(_HEAD):
        piece = connection.recv(1)
        if not piece:
            return None
        head += piece
    return head[: -len(_HEAD)]
