"""PipelinedConnection: replies in order, every problem a Redis error, and reconnection."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import hiredis
import pytest
from redis import exceptions

import sluice.common.redis.pipelined
from sluice.common.redis.connection import TRANSIENT_ERRORS
from sluice.common.redis.pipelined import PipelinedConnection
from tests.support.servers import BUNDLED, Backend, RealServer, require_binary
from tests.support.waiting import eventually

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def fake_server(handler: Handler) -> AsyncIterator[str]:
    """A scripted TCP server; yields its URL."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await handler(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    server.close()
    for writer in writers:
        writer.transport.abort()


async def answer_everything(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: bytes
) -> None:
    """Answer each command, up to the one that contains `until`."""
    parser = hiredis.Reader()
    while data := await reader.read(4096):
        parser.feed(data)
        while (command := parser.gets()) is not False:
            if until in command:
                return
            writer.write(b"+PONG\r\n" if b"PING" in command else b"+OK\r\n")


@pytest.fixture
async def wire(backend: Backend) -> PipelinedConnection:
    return backend.wire()  # type: ignore[return-value]


@pytest.mark.real_redis
async def test_send_passes_replies_and_errors_to_callbacks(wire: PipelinedConnection) -> None:
    assert not wire.ready
    await wire.execute_command("SET", "{0}a", "x")
    assert wire.ready
    heard: list[object] = []
    for command in (("GET", "{0}a"), ("INCR", "{0}a"), ("GET", "{0}none"), ("LLEN", "{0}a")):
        wire.send(command, heard.append)
    await wire.execute_command("PING")
    assert heard[0] == b"x"
    assert isinstance(heard[1], exceptions.ResponseError)
    assert heard[2] is None
    assert str(heard[3]).startswith("WRONGTYPE")


@pytest.mark.real_redis
async def test_replies_bigger_than_any_buffer(wire: PipelinedConnection) -> None:
    big = bytes(range(256)) * 32768  # 8 MiB, every byte value
    await wire.execute_command("SET", "{0}big", big)
    replies = await asyncio.gather(*(wire.execute_command("GET", "{0}big") for _ in range(3)))
    assert all(reply == big for reply in replies)
    assert await wire.execute_command("PING") == b"PONG"


@pytest.mark.real_redis
async def test_a_canceled_command_does_not_shift_replies(wire: PipelinedConnection) -> None:
    await wire.execute_command("PING")
    tasks = [asyncio.create_task(wire.execute_command("ECHO", n)) for n in range(1000)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes[1::2] == [str(n).encode() for n in range(1, 1000, 2)]
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
    assert await wire.execute_command("ECHO", "next") == b"next"


@pytest.mark.real_redis
async def test_a_caller_canceled_while_connecting_affects_no_other(backend: Backend) -> None:
    wire = backend.wire()
    first, second = (asyncio.create_task(wire.execute_command("ECHO", n)) for n in (1, 2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"2"


@pytest.mark.real_redis
async def test_messages_and_replies_on_one_connection(backend: Backend) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    wire = backend.wire(on_message=heard.put_nowait)
    await wire.execute_command("SUBSCRIBE", "news")
    client = backend.client()
    for number in range(3):
        await client.publish("news", f"n{number}")
    assert [await asyncio.wait_for(heard.get(), 5) for _ in range(3)] == [b"n0", b"n1", b"n2"]


async def test_refused_connections_are_transient_errors() -> None:
    for url in ("redis://127.0.0.1:1/0", "unix:///nonexistent.sock"):
        wire = PipelinedConnection(url)
        with pytest.raises(TRANSIENT_ERRORS):
            await wire.execute_command("PING")
        assert not wire.ready
        await wire.aclose()


@pytest.mark.real_redis
async def test_a_killed_connection_fails_all_commands_and_is_replaced(
    wire: PipelinedConnection, backend: Backend
) -> None:
    await wire.execute_command("PING")
    waiting = [asyncio.create_task(wire.execute_command("BLPOP", "{0}none", 0)) for _ in range(3)]
    await asyncio.sleep(0)
    client = backend.client()

    async def blocked() -> list[str]:
        return [each["id"] for each in await client.client_list() if each["cmd"] == "blpop"]

    await eventually(blocked)
    [client_id] = await blocked()
    await client.client_kill_filter(_id=client_id)
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert all(isinstance(outcome, exceptions.ConnectionError) for outcome in outcomes)
    assert await wire.execute_command("PING") == b"PONG"


async def test_a_restarted_server_is_used_again() -> None:
    server = RealServer(require_binary(BUNDLED))
    wire = PipelinedConnection(server.url)
    try:
        await wire.execute_command("PING")
        server.process.kill()
        server.process.wait()
        await eventually(lambda: not wire.ready)
        with pytest.raises(TRANSIENT_ERRORS):
            await wire.execute_command("PING")
        server.process = subprocess.Popen(
            server.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        async def answers() -> bool:
            try:
                return bool(await wire.execute_command("PING") == b"PONG")
            except TRANSIENT_ERRORS:
                return False

        await eventually(answers)
    finally:
        await wire.aclose()
        server.close()


async def test_auth_and_database_come_from_the_url() -> None:
    server = RealServer(require_binary(BUNDLED))
    path = Path(server.url.removeprefix("unix://"))
    server.client.config_set("requirepass", "s3cret")
    right, wrong = (
        PipelinedConnection(f"unix://:{word}@{path}?db=3") for word in ("s3cret", "guess")
    )
    try:
        await right.execute_command("SET", "k", "v")
        assert b"db3:keys=1" in await right.execute_command("INFO", "keyspace")
        with pytest.raises(exceptions.RedisError, match=r"(?i)invalid|WRONGPASS"):
            await wrong.execute_command("PING")
    finally:
        await right.aclose()
        await wrong.aclose()
        server.close()


async def test_a_server_that_stops_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.common.redis.pipelined, "REPLY_TIMEOUT_S", 0.05)

    async def mute_on_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer_everything(reader, writer, until=b"ECHO")
        await reader.read()

    async with fake_server(mute_on_echo) as url:
        wire = PipelinedConnection(url)
        assert await wire.execute_command("PING") == b"PONG"
        late = [asyncio.create_task(wire.execute_command("ECHO", n)) for n in range(3)]
        outcomes = await asyncio.wait_for(asyncio.gather(*late, return_exceptions=True), 5)
        assert all(isinstance(outcome, exceptions.TimeoutError) for outcome in outcomes)
        assert await wire.execute_command("PING") == b"PONG"  # on a new connection
        await wire.aclose()


@pytest.mark.real_redis
async def test_blocking_may_take_longer(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sluice.common.redis.pipelined, "REPLY_TIMEOUT_S", 0.05)
    wire = backend.wire(block_s=5.0)
    assert await wire.execute_command("BLPOP", "{0}none", "0.2") is None


async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def greet_and_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await answer_everything(reader, writer, until=b"LIB-VER")
    writer.write(b"+OK\r\n")
    writer.close()


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (is_silent, exceptions.TimeoutError),
        (greet_and_leave, TRANSIENT_ERRORS),
        (speak_http, exceptions.RedisError),
    ],
)
async def test_every_problem_of_a_server_is_an_error_of_redis(
    handler: Handler, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.common.redis.pipelined, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(sluice.common.redis.pipelined, "REPLY_TIMEOUT_S", 0.2)
    async with fake_server(handler) as url:
        wire = PipelinedConnection(url)
        for _ in range(3):
            with pytest.raises(error):
                await asyncio.wait_for(wire.execute_command("PING"), 5)
        await wire.aclose()


@pytest.mark.real_redis
async def test_aclose_fails_pending_commands(wire: PipelinedConnection) -> None:
    await wire.execute_command("PING")
    waiting = asyncio.create_task(wire.execute_command("BLPOP", "{0}none", 0))
    await asyncio.sleep(0)
    await wire.aclose()
    with pytest.raises(exceptions.ConnectionError):
        await asyncio.wait_for(waiting, 5)
    assert not wire.ready
    await wire.aclose()
