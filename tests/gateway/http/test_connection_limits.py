"""Connection limits: clients that do not read, idle ones at shutdown, few file descriptors."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from sluice.gateway.http.connection_limits import ConnectionLimits, connection_capacity
from sluice.gateway.http.protocol import protocol_for
from tests.support.gateway.asgi import Answer
from tests.support.gateway.raw import Raw, get, raw
from tests.support.waiting import eventually

MUCH = 8 << 20


async def answers_much(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the number of bytes in the path."""
    size = int(scope["path"][1:])
    headers = [(b"content-length", b"%d" % size)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for start in range(0, size, 1 << 16):
        part = b"x" * min(1 << 16, size - start)
        more = start + len(part) < size
        await send({"type": "http.response.body", "body": part, "more_body": more})


@asynccontextmanager
async def serving(**bounds: Any) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    """A server in this process, on a free port."""
    usual = {"max_connections": 100, "max_header_bytes": 4096, "header_timeout_s": 60.0}
    config = uvicorn.Config(
        answers_much,
        http=protocol_for(ConnectionLimits(**{**usual, **bounds})),
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=60,
    )
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listening]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield listening.getsockname()[1], server
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 20)


async def all_gone(server: uvicorn.Server) -> None:
    """Wait until the server has no connections and no requests."""
    state = server.server_state
    await eventually(lambda: not state.connections and not state.tasks)


async def answered(client: Raw, size: int) -> Answer:
    """Send a request for so many bytes, and read them."""
    client.send(get(f"/{size}"))
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, b"x" * size)
    return answer


def unread(port: int, size: int) -> socket.socket:
    """A client with a small receive buffer that never reads the response."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(get(f"/{size}"))
    return client


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    async with serving(stall_s=0.2) as (port, server):
        with unread(port, MUCH):
            await eventually(lambda: server.server_state.tasks)
            await all_gone(server)


async def test_a_closing_connection_does_not_wait_for_its_reader() -> None:
    """The application has written the whole response, but the client has not read it."""
    async with serving(stall_s=0.2) as (port, server):
        with unread(port, MUCH):
            await eventually(lambda: server.server_state.tasks)
            for connection in list(server.server_state.connections):
                connection._close()  # type: ignore[union-attr]
            await all_gone(server)


async def test_a_slow_reader_gets_the_whole_response() -> None:
    async with serving(stall_s=60.0) as (port, server), known(port, server) as (client, serves):
        client.send(get(f"/{MUCH}"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        read = 0
        while read < MUCH:  # the timer expires with each part
            timer = serves._stall_timer
            read += len(await client.reader.readexactly(MUCH // 16))
            if timer is not None and not timer.cancelled():
                assert timer is serves._stall_timer, "otherwise the timer could not be canceled"
                timer.cancel()
                serves._check_reader()


async def test_long_idle_connections_are_closed_at_shutdown() -> None:
    async with serving(shutdown_grace_s=0.0) as (port, server), raw(port) as connection:
        await answered(connection, 5)
        for kept in list(server.server_state.connections):
            kept.shutdown()
        assert await connection.end() == b""


async def test_recently_used_connections_get_one_more_request() -> None:
    async with serving(shutdown_grace_s=30.0) as (port, server), raw(port) as connection:
        await answered(connection, 5)
        for kept in list(server.server_state.connections):
            kept.shutdown()
        answer = await answered(connection, 6)
        assert answer.header("connection") == "close"
        assert await connection.end() == b""


def test_the_file_limit_is_raised_up_to_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unlimited, limits = resource.RLIM_INFINITY, []
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both[0]))
    for soft, hard, requested, capacity, raised_to in (
        (1024, 4096, 2000, 2000, [2100]),
        (1024, 1024, 2000, 924, [1024]),
        (1024, 4096, 500, 500, []),
        (1024, unlimited, 10_000, 10_000, [10_100]),
        (unlimited, unlimited, 10_000, 10_000, []),
    ):
        limits.clear()
        caplog.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, both=(soft, hard): both)
        with caplog.at_level(logging.WARNING):
            assert connection_capacity(requested) == capacity
        assert limits == raised_to
        assert ("MAX_CONNECTIONS" in caplog.text) is (capacity < requested)


@asynccontextmanager
async def known(port: int, server: uvicorn.Server) -> AsyncIterator[tuple[Raw, Any]]:
    """The only connection: the client's side, and the server's."""
    async with raw(port) as client:
        await eventually(lambda: server.server_state.connections)
        [protocol] = server.server_state.connections
        yield client, protocol


def fire_late(protocol: Any, name: str) -> None:
    """As if the event loop had stalled: a timer fires a second late, before data is read."""
    timer, loop = getattr(protocol, name), asyncio.get_running_loop()
    callback = timer._callback
    timer.cancel()
    late = loop.call_at(loop.time() - 1.0, callback)
    late.cancel()  # it is called below
    setattr(protocol, name, late)
    callback()


async def test_after_a_stall_data_is_read_before_the_shutdown() -> None:
    """A timer may fire before bytes are read that had already arrived."""
    async with (
        serving(shutdown_grace_s=60.0) as (port, server),
        known(port, server) as (client, kept),
    ):
        kept.shutdown()
        fire_late(kept, "_last_timer")
        assert not kept.transport.is_closing()
        await answered(client, 3)


@pytest.mark.parametrize("begun", [0, 20], ids=["all of it", "the rest of it"])
async def test_after_a_stall_a_request_head_is_read(begun: int) -> None:
    async with serving() as (port, server), known(port, server) as (client, waiting):
        client.send(get("/3")[:begun])
        await eventually(lambda: bool(waiting._head_open) is (begun > 0))
        fire_late(waiting, "_head_timer")
        client.send(get("/3")[begun:])
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"xxx")
        assert waiting._head_timer is None


async def test_after_a_stall_a_kept_connection_is_read() -> None:
    async with serving() as (port, server), known(port, server) as (client, kept):
        await answered(client, 3)
        fire_late(kept, "timeout_keep_alive_task")
        await answered(client, 4)


@pytest.mark.parametrize("timer", ["_head_timer", "timeout_keep_alive_task"])
async def test_a_late_timer_is_extended_only_once(timer: str) -> None:
    """A gateway that always stalls still closes slow connections."""
    async with serving() as (port, server), known(port, server) as (client, slow):
        if timer == "timeout_keep_alive_task":
            await answered(client, 3)
        fire_late(slow, timer)
        assert not slow.transport.is_closing()
        fire_late(slow, timer)
        assert slow.transport.is_closing()
        assert await client.end() == b""
