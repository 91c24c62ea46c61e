"""Uploads to real gateways: the bytes on the wire, broken connections and crashes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import eventually
from tests.gateway.features.images.kit import BYTES, FORM, KEYS, PNG, form
from tests.gateway.processes import (
    PYTHON_M,
    TIMEOUT_S,
    UVICORN,
    GatewayProcess,
    RawStream,
    free_port,
)
from tests.gateway.raw import Raw, raw
from tests.support.backends import BUNDLED, RealServer, require_binary

pytestmark = pytest.mark.process

MIB = 1 << 20
Start = Callable[..., GatewayProcess]
COMMANDS = pytest.mark.parametrize("command", [PYTHON_M, UVICORN], ids=["python -m", "uvicorn"])


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture
def start(server: RealServer, tmp_path: Path) -> Iterator[Start]:
    server.client.flushall()
    started: list[GatewayProcess] = []

    def factory(command: tuple[str, ...] = PYTHON_M, **settings: str) -> GatewayProcess:
        if command == UVICORN:
            command = (*command, "--port", str(free_port()))
        named = {"PORT": "0", "REDIS_URL": server.url, "SLUICE_DATA_DIR": str(tmp_path), **settings}
        gateway = GatewayProcess(command, tmp_path / f"log-{len(started)}", **named)
        started.append(gateway)
        return gateway.wait_until_listening()

    yield factory
    for gateway in started:
        gateway.close()


def create(port: int, **body: Any) -> str:
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/images", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 201, answer.text
    image_id: str = answer.json()["image_id"]
    return image_id


def put(port: int, image_id: str, data: bytes = BYTES, **headers: str) -> httpx.Response:
    target = f"http://127.0.0.1:{port}/v1/images/{image_id}/upload"
    return httpx.put(target, content=data, headers={**PNG, **headers}, timeout=TIMEOUT_S)


def head(image_id: str, length: int | None, **headers: str) -> bytes:
    """The head of an upload as bytes; chunked without a length."""
    named = {"Host": "localhost", "Content-Type": "image/png", **headers}
    if length is None:
        named["Transfer-Encoding"] = "chunked"
    else:
        named["Content-Length"] = str(length)
    lines = [f"PUT /v1/images/{image_id}/upload HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def spooled(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "images" / "spool"
    return sorted(directory.iterdir()) if directory.is_dir() else []


def is_free(server: RealServer, tmp_path: Path, image_id: str) -> bool:
    """True if the image has no upload and the spool is empty."""
    return not server.client.exists(KEYS.upload(image_id)) and not spooled(tmp_path)


async def continued(connection: Raw) -> bytes:
    line: bytes = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    return line


@COMMANDS
async def test_expect_continue_is_answered_before_the_body(
    start: Start, command: tuple[str, ...]
) -> None:
    gateway = start(command)
    image_id = create(gateway.port)
    async with raw(gateway.port) as connection:
        connection.send(head(image_id, len(BYTES), Expect="100-continue"))
        assert await continued(connection) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(BYTES)
        assert (await connection.answer()).status == 202
    async with raw(gateway.port) as connection:
        connection.send(head(image_id, 30 * MIB, Expect="100-continue"))
        answer = await connection.answer()
        assert (answer.status, answer.json()["code"]) == (409, "already_uploaded")
        assert answer.header("connection") == "close"
        assert await connection.end() == b""


@COMMANDS
@pytest.mark.parametrize("size", [100, 31 * MIB])
def test_a_client_that_reads_after_sending_gets_the_refusal(
    start: Start, command: tuple[str, ...], size: int
) -> None:
    """The connection is neither reset nor left unusable."""
    gateway = start(command)
    image_id = create(gateway.port)
    assert put(gateway.port, image_id).status_code == 202
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
    for _ in range(2):
        connection.request("PUT", f"/v1/images/{image_id}/upload", bytes(size), PNG)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["code"]) == (409, "already_uploaded")
    connection.request("GET", "/healthz")
    assert connection.getresponse().read()
    connection.close()


@COMMANDS
def test_a_too_large_upload_gets_413(
    start: Start, command: tuple[str, ...], tmp_path: Path
) -> None:
    gateway = start(command, IMAGE_UPLOAD_HARD_MAX=str(4 * MIB))
    image_id = create(gateway.port)
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
    connection.request("PUT", f"/v1/images/{image_id}/upload", bytes(6 * MIB), PNG)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "body_too_large")
    connection.close()
    pieces = iter([bytes(MIB)] * 6)
    connection.request("PUT", f"/v1/images/{image_id}/upload", pieces, PNG, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    assert spooled(tmp_path) == []
    assert put(gateway.port, image_id).status_code == 202


async def test_one_of_twenty_concurrent_uploads_is_accepted(start: Start, tmp_path: Path) -> None:
    """On two gateways: one upload is accepted, the others are refused."""
    ports = [start().port, start().port]
    image_id = create(ports[0])
    data = os.urandom(2 * MIB)

    async def upload(number: int) -> int:
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            target = f"http://127.0.0.1:{ports[number % 2]}/v1/images/{image_id}/upload"
            return (await client.put(target, content=data, headers=PNG)).status_code

    statuses = await asyncio.gather(*(upload(number) for number in range(20)))
    assert sorted(statuses) == [202] + [409] * 19
    [file] = spooled(tmp_path)
    assert file.read_bytes() == data


@pytest.mark.parametrize("how", ["closed", "reset", "chunked"])
async def test_a_broken_connection_releases_the_claim(
    start: Start, server: RealServer, tmp_path: Path, how: str
) -> None:
    gateway = start()
    image_id = create(gateway.port)
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        if how == "chunked":
            client.sendall(head(image_id, None) + b"100000\r\n" + bytes(3000))
        else:
            client.sendall(head(image_id, 5 * MIB) + bytes(2 * MIB))
        await eventually(lambda: server.client.exists(KEYS.upload(image_id)))
        if how == "reset":
            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await eventually(lambda: is_free(server, tmp_path, image_id))
    stage: Any = server.client.hget(KEYS.status(image_id), "stage")
    assert stage == b"queued"
    assert put(gateway.port, image_id).status_code == 202
    assert "Traceback" not in gateway.log


async def test_a_slow_upload_is_aborted(start: Start, server: RealServer, tmp_path: Path) -> None:
    gateway = start(IMAGE_UPLOAD_TIMEOUT_S="0.5")
    image_id = create(gateway.port)
    async with raw(gateway.port) as connection:
        connection.send(head(image_id, 1000), b"x")
        answer = await connection.answer()
        assert (answer.status, answer.json()["code"]) == (408, "request_timeout")
    await eventually(lambda: is_free(server, tmp_path, image_id))
    assert put(gateway.port, image_id).status_code == 202


async def test_a_killed_gateway_releases_the_claim(
    start: Start, server: RealServer, tmp_path: Path
) -> None:
    """The claim of a dead gateway expires, then the image can be uploaded again."""
    gateway, other = start(), start()
    image_id = create(gateway.port)
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        client.sendall(head(image_id, 5 * MIB) + bytes(3 * MIB))
        await eventually(lambda: spooled(tmp_path))
        gateway.stop(signal.SIGKILL)
    assert put(other.port, image_id).status_code == 409
    server.client.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
    assert put(other.port, image_id).status_code == 202
    whole = [file for file in spooled(tmp_path) if not file.name.endswith(".part")]
    assert [file.read_bytes() for file in whole] == [BYTES]


async def test_a_stopping_gateway_aborts_uploads(
    start: Start, server: RealServer, tmp_path: Path
) -> None:
    """Streams get a last event; an unfinished upload is aborted cleanly."""
    gateway, other = start(), start()
    ids = [create(gateway.port) for _ in range(2)]
    stream = await RawStream.open(gateway.port, f"/v1/images/{ids[1]}/events")
    many = await RawStream.open(gateway.port, f"/v1/images/events?image_ids={','.join(ids)}")
    async with raw(gateway.port) as connection:
        connection.send(head(ids[0], 1000), b"x")
        await eventually(lambda: server.client.exists(KEYS.upload(ids[0])))
        stopping = asyncio.get_running_loop().run_in_executor(None, gateway.stop)
        for each in (stream, many):
            last = (await each.rest())[-1]
            assert (last.event, last.retry) == ("shutdown", "500")
            await each.close()
        answer = await connection.answer()
        assert (answer.status, answer.json()["code"]) == (503, "store_unavailable")
        assert await stopping < 10
    assert is_free(server, tmp_path, ids[0])
    assert put(other.port, ids[0]).status_code == 202
    assert "Traceback" not in gateway.log


def test_memory_stays_flat_during_large_uploads(start: Start, tmp_path: Path) -> None:
    gateway = start(IMAGE_UPLOAD_HARD_MAX=str(512 * MIB))
    port = gateway.port
    assert put(port, create(port), bytes(8 * MIB)).status_code == 202
    before = rss(gateway)
    piece = os.urandom(MIB)
    for content, headers in (
        ((piece for _ in range(300)), PNG),
        ((part for part in _form_of(piece, 300)), FORM),
    ):
        image_id = create(port)
        target = f"http://127.0.0.1:{port}/v1/images/{image_id}/upload"
        started = time.monotonic()
        answer = httpx.put(target, content=content, headers=headers, timeout=TIMEOUT_S)
        assert answer.status_code == 202, answer.text
        assert rss(gateway) - before < 40 * MIB, "the whole of it was kept in memory"
        print(f"{300 / (time.monotonic() - started):.0f} MiB/s")
    sizes = sorted(file.stat().st_size for file in spooled(tmp_path))
    assert sizes == [8 * MIB, 300 * MIB, 300 * MIB]


def _form_of(piece: bytes, count: int) -> Iterator[bytes]:
    before, _, after = form(b"@@@").partition(b"@@@")
    yield before
    for _ in range(count):
        yield piece
    yield after


def rss(gateway: GatewayProcess) -> int:
    statm = Path(f"/proc/{gateway.process.pid}/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGESIZE")


def connections(server: RealServer) -> int:
    """Without the test's own connection."""
    listed: Any = server.client.client_list()
    return len(listed) - 1


async def test_many_streams_need_few_connections(start: Start, server: RealServer) -> None:
    gateway = start()
    ids = [create(gateway.port) for _ in range(20)]
    opened = [
        await RawStream.open(gateway.port, f"/v1/images/{image_id}/events")
        for image_id in ids
        for _ in range(5)
    ]
    for stream in opened:
        while (block := await stream.next()) is not None and block.event != "processing":
            pass
    assert connections(server) <= 8
    for image_id in ids:
        assert httpx.delete(f"http://127.0.0.1:{gateway.port}/v1/images/{image_id}").is_success
    for stream in opened:
        assert [block.event for block in await stream.rest()] == ["gone"]
        await stream.close()
    assert connections(server) <= 8


async def test_results_are_consumed_in_the_background(start: Start, server: RealServer) -> None:
    """The consumer runs in the gateway, and continues after Redis was emptied."""
    gateway = start()
    await _failure_comes(gateway, server)
    server.client.flushall()
    await _failure_comes(gateway, server)


async def _failure_comes(gateway: GatewayProcess, server: RealServer) -> None:
    image_id = create(gateway.port)
    assert put(gateway.port, image_id).status_code == 202
    failure: Any = {
        "image_id": image_id,
        "status": "failed",
        "error_code": "DECODE_FAILED",
        "error_message": "image file is truncated",
        "failed_at": "2026-02-24T10:00:00Z",
    }
    server.client.xadd(KEYS.results, failure)

    def view() -> Any:
        return httpx.get(f"http://127.0.0.1:{gateway.port}/v1/images/{image_id}").json()

    await eventually(lambda: view()["status"] == "failed", 20)
    assert view()["error_code"] == "DECODE_FAILED"
