"""Uploads to real gateways: the bytes on the wire, broken connections and crashes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway.images import BYTES, FORM, KEYS, PNG, form
from tests.support.gateway.raw import Raw, raw
from tests.support.processes.gateway import (
    PYTHON_M,
    TIMEOUT_S,
    UVICORN,
    GatewayProcess,
    RawStream,
    StartGateway,
)
from tests.support.servers import RealServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

MIB = 1 << 20
SLOW = pytest.mark.slow("starts more gateways")
COMMANDS = pytest.mark.parametrize("command", [PYTHON_M, UVICORN], ids=["python -m", "uvicorn"])
Start = Callable[..., GatewayProcess]


@pytest.fixture
def server(module_server: RealServer) -> RealServer:
    module_server.client.flushall()
    return module_server


@pytest.fixture
def start(server: RealServer, start_gateway: StartGateway, tmp_path: Path) -> Start:
    def start(command: tuple[str, ...] = PYTHON_M, **settings: str) -> GatewayProcess:
        return start_gateway(server.url, command, SLUICE_DATA_DIR=str(tmp_path), **settings)

    return start


def create(gateway: GatewayProcess, **body: Any) -> str:
    answer = gateway.http.post("/v1/images", json=body)
    assert answer.status_code == 201, answer.text
    image_id: str = answer.json()["image_id"]
    return image_id


def put(gateway: GatewayProcess, image_id: str, data: Any = BYTES, **headers: str) -> int:
    path, named = f"/v1/images/{image_id}/upload", {**PNG, **headers}
    return gateway.http.put(path, content=data, headers=named).status_code


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
    return not server.client.exists(KEYS.upload(image_id)) and not spooled(tmp_path)


async def continued(connection: Raw) -> bytes:
    line: bytes = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    return line


@SLOW
@COMMANDS
async def test_refusals_before_and_after_the_body(
    start: Start, command: tuple[str, ...], tmp_path: Path
) -> None:
    """A client that expects 100 gets it, or the refusal, before it sends the body; a client that
    reads only after sending gets the refusal, too: the connection is neither reset nor left
    unusable.
    """
    gateway = start(command, IMAGE_UPLOAD_HARD_MAX=str(32 * MIB))
    image_id = create(gateway)
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
    again, path = create(gateway), "/v1/images/{}/upload"
    with closing(http.client.HTTPConnection("127.0.0.1", gateway.port, TIMEOUT_S)) as client:

        def refused(target: str, body: Any) -> tuple[int, str]:
            chunked = not isinstance(body, bytes)
            client.request("PUT", path.format(target), body, PNG, encode_chunked=chunked)
            response = client.getresponse()
            return response.status, json.loads(response.read())["code"]

        for size in (100, 31 * MIB):
            for _ in range(2):
                assert refused(image_id, bytes(size)) == (409, "already_uploaded")
        client.request("GET", "/healthz")
        assert client.getresponse().read()
        for body in (bytes(34 * MIB), iter([bytes(MIB)] * 34)):
            assert refused(again, body) == (413, "body_too_large")
            client.close()
    assert len(spooled(tmp_path)) == 1
    assert put(gateway, again) == 202


@SLOW
async def test_an_aborted_upload_releases_the_claim(
    start: Start, server: RealServer, tmp_path: Path
) -> None:
    gateway = start(IMAGE_UPLOAD_TIMEOUT_S="3")
    for how in ("closed", "reset", "chunked"):
        image_id = create(gateway)
        with socket.create_connection(("127.0.0.1", gateway.port)) as client:
            if how == "chunked":
                client.sendall(head(image_id, None) + b"100000\r\n" + bytes(3000))
            else:
                client.sendall(head(image_id, 5 * MIB) + bytes(2 * MIB))
            await eventually(lambda image_id=image_id: server.client.exists(KEYS.upload(image_id)))
            if how == "reset":
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await eventually(lambda image_id=image_id: is_free(server, tmp_path, image_id))
        assert server.client.hget(KEYS.status(image_id), "stage") == b"queued"
    # A slow upload is aborted.
    async with raw(gateway.port) as connection:
        connection.send(head(image_id, 1000), b"x")
        answer = await connection.answer()
        assert (answer.status, answer.json()["code"]) == (408, "request_timeout")
    await eventually(lambda: is_free(server, tmp_path, image_id))
    assert put(gateway, image_id) == 202
    assert "Traceback" not in gateway.log


@SLOW
async def test_a_killed_gateway_releases_the_claim(
    start: Start, server: RealServer, tmp_path: Path
) -> None:
    """The claim of a dead gateway expires, then the image can be uploaded again."""
    gateway, other = start(), start()
    image_id = create(gateway)
    with socket.create_connection(("127.0.0.1", gateway.port)) as client:
        client.sendall(head(image_id, 5 * MIB) + bytes(3 * MIB))
        await eventually(lambda: spooled(tmp_path))
        gateway.stop(signal.SIGKILL)
    assert put(other, image_id) == 409
    server.client.hset(KEYS.record(image_id), "upload_deadline_ms", "1")
    assert put(other, image_id) == 202
    whole = [file for file in spooled(tmp_path) if not file.name.endswith(".part")]
    assert [file.read_bytes() for file in whole] == [BYTES]


@SLOW
async def test_a_stopping_gateway_aborts_uploads(
    start: Start, server: RealServer, tmp_path: Path
) -> None:
    """Streams get a last event; an unfinished upload is aborted cleanly."""
    gateway, other = start(), start()
    ids = [create(gateway) for _ in range(2)]
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
    assert put(other, ids[0]) == 202
    assert "Traceback" not in gateway.log


@pytest.mark.slow("uploads 600 MiB")
def test_memory_stays_flat_during_large_uploads(start: Start, tmp_path: Path) -> None:
    gateway = start(IMAGE_UPLOAD_HARD_MAX=str(512 * MIB))
    assert put(gateway, create(gateway), bytes(8 * MIB)) == 202
    before = rss(gateway)
    piece = os.urandom(MIB)
    for content, headers in (
        ((piece for _ in range(300)), PNG),
        ((part for part in _form_of(piece, 300)), FORM),
    ):
        assert put(gateway, create(gateway), content, **headers) == 202
        assert rss(gateway) - before < 40 * MIB, "the whole of it was kept in memory"
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
