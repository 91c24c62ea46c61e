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

from gateway.http.connection_limits import ConnectionLimits, connection_capacity
from gateway.http.protocol import protocol_for
from tests.conftest import eventually
from tests.gateway.raw import Raw, get, raw

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
    """Returns once every connection and every request is forgotten."""

    async def forgotten() -> bool:
        return not server.server_state.connections and not server.server_state.tasks

    await eventually(forgotten)


def unread(port: int, size: int) -> socket.socket:
    """A client with a small receive buffer that never reads the response."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(get(f"/{size}"))
    return client


async def test_an_answer_does_not_wait_for_ever_for_its_reader() -> None:
    async with serving(stall_s=0.2) as (port, server):
        with unread(port, MUCH):
            await eventually(lambda: _served(server))
            await all_gone(server)


async def test_nor_does_a_connection_that_is_being_closed() -> None:
    """All is written as far as the application knows; the client has not read it."""
    async with serving(stall_s=0.2) as (port, server):
        with unread(port, MUCH):
            await eventually(lambda: _served(server))
            for connection in list(server.server_state.connections):
                connection._close()  # type: ignore[union-attr]
            await all_gone(server)


async def test_a_slow_reader_gets_all_of_it() -> None:
    async with serving(stall_s=60.0) as (port, server), known(port, server) as (client, serves):
        client.send(get(f"/{MUCH}"))
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        read = 0
        while read < MUCH:  # so slowly that with each piece the time is up
            timer = serves._stall_timer
            read += len(await client.reader.readexactly(MUCH // 16))
            if timer is not None and not timer.cancelled():
                assert timer is serves._stall_timer, "or nobody could stop it"
                timer.cancel()
                serves._check_reader()


async def _served(server: uvicorn.Server) -> bool:
    return bool(server.server_state.tasks)


async def test_connections_quiet_for_long_are_closed_at_once_at_the_end() -> None:
    async with serving(shutdown_grace_s=0.0) as (port, server), raw(port) as connection:
        connection.send(get("/5"))
        assert (await connection.answer()).body == b"xxxxx"
        for kept in list(server.server_state.connections):
            kept.shutdown()
        assert await connection.end() == b""


async def test_connections_just_used_may_ask_once_more_at_the_end() -> None:
    async with serving(shutdown_grace_s=30.0) as (port, server), raw(port) as connection:
        connection.send(get("/5"))
        assert (await connection.answer()).body == b"xxxxx"
        for kept in list(server.server_state.connections):
            kept.shutdown()
        connection.send(get("/6"))
        answer = await connection.answer()
        assert (answer.body, answer.header("connection")) == (b"xxxxxx", "close")
        assert await connection.end() == b""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "room", "raised_to"),
    [
        (1024, 4096, 2000, 2000, 2100),
        (1024, 1024, 2000, 924, 1024),
        (1024, 4096, 500, 500, None),
        (1024, resource.RLIM_INFINITY, 10_000, 10_000, 10_100),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10_000, 10_000, None),
    ],
)
def test_room_is_made_as_far_as_the_hard_limit_goes(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    wanted: int,
    room: int,
    raised_to: int | None,
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both[0]))
    with caplog.at_level(logging.WARNING):
        assert connection_capacity(wanted) == room
    assert limits == ([] if raised_to is None else [raised_to])
    assert ("MAX_CONNECTIONS" in caplog.text) is (room < wanted)


@asynccontextmanager
async def known(port: int, server: uvicorn.Server) -> AsyncIterator[tuple[Raw, Any]]:
    """The only connection: the client's side, and the server's."""
    async with raw(port) as client:

        async def is_known() -> bool:
            return bool(server.server_state.connections)

        await eventually(is_known)
        [protocol] = server.server_state.connections
        yield client, protocol


def ring_late(protocol: Any, name: str) -> None:
    """As if the loop had stood still: a timer rings a second late, before anything is read."""
    timer, loop = getattr(protocol, name), asyncio.get_running_loop()
    rings = timer._callback
    timer.cancel()
    late = loop.call_at(loop.time() - 1.0, rings)
    late.cancel()  # it rings here
    setattr(protocol, name, late)
    rings()


async def test_at_the_end_what_came_while_we_stood_still_is_read_first() -> None:
    """A timer may be heard before the bytes that were there when it rang."""
    async with (
        serving(shutdown_grace_s=60.0) as (port, server),
        known(port, server) as (client, kept),
    ):
        kept.shutdown()
        ring_late(kept, "_last_timer")
        assert not kept.transport.is_closing()
        client.send(get("/3"))
        assert (await client.answer()).body == b"xxx"


@pytest.mark.parametrize("begun", [0, 20], ids=["all of it", "the rest of it"])
async def test_a_head_that_came_while_we_stood_still_is_read(begun: int) -> None:
    async with serving() as (port, server), known(port, server) as (client, waiting):
        client.send(get("/3")[:begun])

        async def is_begun() -> bool:
            return bool(waiting._head_open) is (begun > 0)

        await eventually(is_begun)
        ring_late(waiting, "_head_timer")
        client.send(get("/3")[begun:])
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"xxx")
        assert waiting._head_timer is None


async def test_a_request_that_came_on_a_kept_connection_while_we_stood_still_is_read() -> None:
    async with serving() as (port, server), known(port, server) as (client, kept):
        client.send(get("/3"))
        assert (await client.answer()).body == b"xxx"
        ring_late(kept, "timeout_keep_alive_task")
        client.send(get("/4"))
        assert (await client.answer()).body == b"xxxx"


@pytest.mark.parametrize("timer", ["_head_timer", "timeout_keep_alive_task"])
async def test_there_is_one_second_chance(timer: str) -> None:
    """A gateway that is always late gets rid of slow clients too."""
    async with serving() as (port, server), known(port, server) as (client, slow):
        if timer == "timeout_keep_alive_task":
            client.send(get("/3"))
            assert (await client.answer()).body == b"xxx"
        ring_late(slow, timer)
        assert not slow.transport.is_closing()
        ring_late(slow, timer)
        assert slow.transport.is_closing()
        assert await client.end() == b""
