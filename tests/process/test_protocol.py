"""The gateway's HTTP protocol over raw sockets: size, time and connection limits, invalid requests,
pipelining, shutdown.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.gateway.conftest import CHAT, check_problem
from tests.gateway.processes import PYTHON_M, TIMEOUT_S, GatewayProcess
from tests.gateway.raw import get, post, raw
from tests.process.test_gateway_process import complaints, http_client
from tests.support.backends import BUNDLED, RealServer, require_binary

pytestmark = pytest.mark.process

LIMIT = 2048
#: Short, but long enough for a busy machine.
SHORT_TIMEOUT_S = 3.0

Start = Callable[..., GatewayProcess]


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture(scope="module")
def start(server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts gateways and stops all of them at the end."""
    started: list[GatewayProcess] = []

    def factory(**settings: str) -> GatewayProcess:
        log: Path = tmp_path_factory.mktemp("gateway") / "log"
        named = {"PORT": "0", "REDIS_URL": server.url, "AUTH": "off", **settings}
        gateway = GatewayProcess(PYTHON_M, log, **named)
        started.append(gateway)
        return gateway.wait_until_listening()

    yield factory
    for gateway in started:
        gateway.close()


@pytest.fixture(scope="module")
def gateway(start: Start) -> Iterator[GatewayProcess]:
    """A gateway with low limits and long timeouts, for tests that do not change it."""
    gateway = start(
        MAX_HEADER_BYTES=str(LIMIT),
        HEADER_TIMEOUT_S="60",
        BODY_TIMEOUT_S="60",
        SSE_HEARTBEAT_S="0.1",
    )
    yield gateway
    assert complaints(gateway.log) == []


@pytest.fixture(scope="module")
def short_timeouts(start: Start) -> Iterator[GatewayProcess]:
    """A gateway with short timeouts."""
    gateway = start(HEADER_TIMEOUT_S=str(SHORT_TIMEOUT_S), BODY_TIMEOUT_S=str(SHORT_TIMEOUT_S))
    yield gateway
    assert complaints(gateway.log) == []


def padded(length: int, **headers: str) -> bytes:
    """A GET request whose head has exactly this length."""
    bare = get(X_Padding="", **headers)
    return get(X_Padding="x" * (length - len(bare)), **headers)


# Long heads


async def test_a_head_may_be_as_long_as_the_limit(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        for _ in range(2):
            connection.send(padded(LIMIT))
            assert (await connection.answer()).status == 200


@pytest.mark.parametrize(
    "head",
    [
        padded(LIMIT + 1),
        padded(40 * LIMIT),
        padded(400 * LIMIT),
        get("/" + "x" * 2 * LIMIT),
        get(**{f"X_{number}": "y" for number in range(500)}),
        get()[:-2] + b"X" * 2 * LIMIT,
    ],
    ids=["by one byte", "by far", "by very far", "target", "many headers", "unfinished name"],
)
async def test_a_longer_head_gets_431(gateway: GatewayProcess, head: bytes) -> None:
    async with raw(gateway.port) as connection:
        connection.send(head)
        answer = await connection.answer()
        check_problem(answer, 431, "headers_too_large")
        assert answer.header("connection") == "close"
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("server") is None
        assert await connection.end() == b""


async def test_a_long_head_in_many_pieces_gets_431(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        head = padded(LIMIT + 1)
        for start in range(0, len(head), 100):
            connection.send(head[start : start + 100])
            await asyncio.sleep(0)
        check_problem(await connection.answer(), 431, "headers_too_large")
        assert await connection.end() == b""


async def test_a_trailer_is_bounded_too(gateway: GatewayProcess) -> None:
    head = post(CHAT, Transfer_Encoding="chunked").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    body = b'{"task":"chat","payload":{}}'
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    async with raw(gateway.port) as connection:
        connection.send(head + chunks + b"X-Request-Id: from-the-trailer\r\n\r\n")
        answer = await connection.answer()
        assert answer.status == 202
        assert answer.header("x-request-id") != "from-the-trailer"
        connection.send(head + chunks)
        await connection.drip(b"X-Long: ")
        connection.send(b"x" * 4 * LIMIT)
        check_problem(await connection.answer(), 431, "headers_too_large")


# Slow requests


async def test_a_head_sent_byte_by_byte_times_out(short_timeouts: GatewayProcess) -> None:
    async with raw(short_timeouts.port) as connection:
        dripping = asyncio.create_task(connection.drip(padded(LIMIT)))
        answer = await connection.answer()
        check_problem(answer, 408, "request_timeout")
        assert answer.header("connection") == "close"
        assert await connection.end() == b""
        await dripping


@pytest.mark.parametrize("data", [b"", b"\r\n" * 500], ids=["nothing", "empty lines"])
async def test_a_connection_without_a_request_is_closed(
    short_timeouts: GatewayProcess, data: bytes
) -> None:
    async with raw(short_timeouts.port) as connection:
        dripping = asyncio.create_task(connection.drip(data))
        assert await connection.end() == b""
        await dripping


async def test_the_second_head_has_the_same_timeout(short_timeouts: GatewayProcess) -> None:
    async with raw(short_timeouts.port) as connection:
        connection.send(get())
        assert (await connection.answer()).status == 200
        dripping = asyncio.create_task(connection.drip(padded(LIMIT)))
        check_problem(await connection.answer(), 408, "request_timeout")
        await dripping


async def test_a_body_sent_byte_by_byte_times_out(short_timeouts: GatewayProcess) -> None:
    """The timeout applies to the whole body; single bytes do not extend it."""
    async with raw(short_timeouts.port) as connection:
        connection.send(post(CHAT, Content_Length="5000"))
        dripping = asyncio.create_task(connection.drip(b" " * 4000))
        answer = await connection.answer()
        check_problem(answer, 408, "request_timeout")
        assert "body" in answer.json()["detail"]
        assert answer.header("connection") == "close"
        assert await connection.end() == b""
        await dripping


async def test_a_body_may_arrive_in_pieces(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        for _ in range(2):
            await connection.drip(post(CHAT), every_s=0.002)
            assert (await connection.answer()).status == 202


async def test_an_unread_body_does_not_keep_the_connection(short_timeouts: GatewayProcess) -> None:
    async with raw(short_timeouts.port) as connection:
        connection.send(post(CHAT, "/nowhere", Content_Length="5000"))
        check_problem(await connection.answer(), 404)
        dripping = asyncio.create_task(connection.drip(b" " * 4000))
        assert await connection.end() == b""
        await dripping


async def test_slow_clients_do_not_block_others(start: Start) -> None:
    gateway = start(HEADER_TIMEOUT_S="10")
    async with AsyncExitStack() as stack:
        slow = []
        for _ in range(500):
            slow.append(await stack.enter_async_context(raw(gateway.port)))
            slow[-1].send(b"GET /healthz HTTP/1.1\r\nHost: local")
        async with http_client(gateway.port) as client:
            for _ in range(20):
                assert (await client.post("/v1/jobs", json=CHAT)).status_code == 202
        for connection in slow:
            check_problem(await connection.answer(), 408, "request_timeout")
            assert await connection.end() == b""
        assert complaints(gateway.log) == []


# Many connections


async def test_too_many_connections_get_503(start: Start) -> None:
    gateway = start(MAX_CONNECTIONS="3", HEADER_TIMEOUT_S="60")
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(raw(gateway.port)) for _ in range(3)]
        for _ in range(20):
            async with raw(gateway.port) as one_too_many:
                one_too_many.send(get())
                answer = await one_too_many.answer()
                check_problem(answer, 503, "too_many_connections")
                assert answer.header("retry-after")
                assert answer.header("connection") == "close"
                assert await one_too_many.end() == b""
        for connection in held:
            connection.send(get())
            assert (await connection.answer()).status == 200
        held[0].close()

        async def connection_available() -> bool:
            async with raw(gateway.port) as connection:
                connection.send(get())
                return (await connection.answer()).status == 200

        await eventually(connection_available)
    assert gateway.log.count("connections are in use") == 1, "one line for all of them"


# Invalid requests


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        get().replace(b"Host", b"Ho st"),
        post(CHAT, Content_Length="1, 2"),
        post(CHAT, Content_Length="5", Transfer_Encoding="chunked"),
        post(CHAT, Transfer_Encoding="chunked"),
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=[
        *("TLS", "a word", "version", "no target", "space in name", "two lengths"),
        *("length and chunks", "no chunks", "CONNECT"),
    ],
)
async def test_an_invalid_request_gets_400(gateway: GatewayProcess, data: bytes) -> None:
    async with raw(gateway.port) as connection:
        connection.send(data)
        answer = await connection.answer()
        check_problem(answer, 400, "malformed_request")
        assert answer.header("connection") == "close"
        assert await connection.end() == b""


async def test_an_invalid_chunk_gets_one_400(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        connection.send(post(CHAT, Transfer_Encoding="chunked").partition(b"\r\n\r\n")[0])
        connection.send(b"\r\n\r\n5\r\n", b'{"tas\r\n')
        await asyncio.sleep(0.05)
        connection.send(b"what?\r\n")
        check_problem(await connection.answer(), 400, "malformed_request")
        assert await connection.end() == b""


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", {200}),
        (b"GET /healthz HTTP/1.1\r\n\r\n", {400}),
        (get().replace(b"localhost", b"evil.example"), {421}),
        (get().replace(b"localhost", b"localhost\r\nHost: localhost"), {400}),
        (get("http://localhost/healthz"), {200}),
        (get("*").replace(b"GET", b"OPTIONS"), {400, 404, 405}),
        (get("/%00%ff"), {404}),
        (get("//healthz"), {404}),
        (get("/caf\u00e9"), {400, 404}),
    ],
    ids=[
        *("old and nameless", "nameless", "another name", "two names", "whole address"),
        *("asterisk", "no text", "two slashes", "not ASCII"),
    ],
)
async def test_unusual_requests_are_answered(
    gateway: GatewayProcess, data: bytes, statuses: set[int]
) -> None:
    async with raw(gateway.port) as connection:
        connection.send(data)
        assert (await connection.answer()).status in statuses


@pytest.mark.parametrize("target", ["/nowhere", "/v1/jobs/x", "/v1/jobs/x/cancel"])
async def test_an_error_leaves_the_connection_open(gateway: GatewayProcess, target: str) -> None:
    async with raw(gateway.port) as connection:
        for _ in range(3):
            connection.send(get(target))
            assert (await connection.answer()).status in (404, 405)
        connection.send(post({"task": "chat"}))
        assert (await connection.answer()).status == 422
        connection.send(post(CHAT))
        assert (await connection.answer()).status == 202


async def test_an_upgrade_to_another_protocol_is_ignored(gateway: GatewayProcess) -> None:
    """Like curl --http2."""
    async with raw(gateway.port) as connection:
        connection.send(get(Connection="Upgrade, HTTP2-Settings", Upgrade="h2c"))
        answer = await connection.answer()
        assert answer.status == 200
        assert answer.header("connection") == "close"
        assert await connection.end() == b""
    async with raw(gateway.port) as connection:
        connection.send(get(Connection="Upgrade", Upgrade="websocket"))
        assert (await connection.answer()).status == 200


async def test_expect_continue_with_a_too_long_body_gets_413(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        head = post(CHAT, Content_Length="9000000", Expect="100-continue")
        connection.send(head.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        check_problem(await connection.answer(), 413, "body_too_large")
        assert await connection.end() == b""


async def test_expect_continue_is_answered(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        head, end, body = post(CHAT, Expect="100-continue").partition(b"\r\n\r\n")
        connection.send(head + end)
        assert (await connection.answer()).status == 100
        connection.send(body)
        assert (await connection.answer()).status == 202


# Pipelined requests


async def test_pipelined_requests_are_answered_in_order(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        connection.send(get() + get("/nowhere") + post(CHAT) + get()[:20])
        statuses = [(await connection.answer()).status for _ in range(3)]
        connection.send(get()[20:])
        assert [*statuses, (await connection.answer()).status] == [200, 404, 202, 200]


@pytest.mark.parametrize("behind", [b"what?\r\n\r\n", padded(10 * LIMIT)], ids=["broken", "long"])
async def test_data_after_a_request_does_not_change_its_response(
    gateway: GatewayProcess, behind: bytes
) -> None:
    """The first response is slow; an earlier refusal would be taken for it."""
    async with raw(gateway.port) as connection:
        connection.send(post(CHAT, Prefer="wait=2") + behind)
        assert (await connection.answer()).status == 202
        assert await connection.end() == b""


async def test_a_slow_head_after_a_request_does_not_either(short_timeouts: GatewayProcess) -> None:
    async with raw(short_timeouts.port) as connection:
        connection.send(post(CHAT, Prefer=f"wait={2 * SHORT_TIMEOUT_S:.0f}") + get()[:20])
        assert (await connection.answer()).status == 202
        assert await connection.end() == b""


async def test_endless_pipelining_is_not_read_ahead(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        connection.send(post(CHAT, Prefer="wait=1") + get() * 500)
        assert (await connection.answer()).status == 202
        answered = (await connection.end()).count(b"HTTP/1.1 200 OK")
        assert 50 < answered < 100


async def test_a_stream_ends_with_its_client_despite_pipelining(
    gateway: GatewayProcess,
) -> None:
    """uvicorn reports a disconnect only to the last request of a connection."""
    async with http_client(gateway.port) as client:
        job_id = (await client.post("/v1/jobs", json=CHAT)).json()["job_id"]

        async def streams() -> int:
            lines = (await client.get("/metrics")).text.splitlines()
            [value] = [line.split()[1] for line in lines if line.startswith(STREAMS + " ")]
            return int(float(value))

        async with raw(gateway.port) as connection:
            connection.send(get(f"/v1/jobs/{job_id}/events") + get())
            await connection.reader.readuntil(b"event: hello")
            assert await streams() == 1
        await eventually(lambda: _is_zero(streams))
    assert complaints(gateway.log) == []


STREAMS = "gw_sse_clients"


async def _is_zero(count: Callable[[], Awaitable[int]]) -> bool:
    return await count() == 0


# Shutdown


async def test_shutdown_answers_requests_in_progress(start: Start) -> None:
    gateway = start()
    async with AsyncExitStack() as stack:
        fresh = await stack.enter_async_context(raw(gateway.port))
        begun = await stack.enter_async_context(raw(gateway.port))
        begun.send(get()[:20])
        silent = await stack.enter_async_context(raw(gateway.port))
        used = await stack.enter_async_context(raw(gateway.port))
        used.send(get())  # accepted last, so that the others are accepted when it is answered
        assert (await used.answer()).status == 200
        gateway.process.send_signal(signal.SIGTERM)
        await eventually(lambda: _in_log(gateway, "Shutting down"))
        fresh.send(post(CHAT))
        begun.send(get()[20:])
        used.send(get())
        for connection, status in ((fresh, 202), (begun, 200), (used, 200)):
            answer = await connection.answer()
            assert answer.status == status
            assert answer.header("connection") == "close"
            assert await connection.end() == b""
        assert await silent.end() == b""
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, gateway.process.wait, TIMEOUT_S) == 0
    assert complaints(gateway.log) == []


async def _in_log(gateway: GatewayProcess, words: str) -> bool:
    return words in gateway.log


async def test_shutdown_closes_keep_alive_connections_cleanly(start: Start) -> None:
    gateway = start()
    going = 0
    # connections that are not accepted yet will not be accepted any more
    all_started = asyncio.Event()

    async def keep_requesting() -> int:
        nonlocal going
        async with raw(gateway.port) as connection:
            for count in range(1, 1_000_000):
                connection.send(get())
                answer = await connection.answer()  # fails if the connection was just closed
                assert answer.status == 200
                if answer.header("connection") == "close":
                    return count
                if count == 3:
                    going += 1
                    if going == len(asking):
                        all_started.set()
        raise AssertionError("it never ended")

    asking = [asyncio.create_task(keep_requesting()) for _ in range(20)]
    await asyncio.wait_for(all_started.wait(), TIMEOUT_S)
    gateway.process.send_signal(signal.SIGTERM)
    assert all(await asyncio.gather(*asking))
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, gateway.process.wait, TIMEOUT_S) == 0
    assert complaints(gateway.log) == []


# Proxies


@pytest.mark.parametrize(
    ("trusted", "remote"), [("", "127.0.0.1"), ("127.0.0.1", "203.0.113.9")], ids=["none", "named"]
)
async def test_forwarded_addresses_need_a_trusted_proxy(
    start: Start, trusted: str, remote: str
) -> None:
    gateway = start(FORWARDED_ALLOW_IPS=trusted)
    async with http_client(gateway.port) as client:
        request_headers = {
            "X-Forwarded-For": "203.0.113.9",
            "X-Request-Id": f"forwarded-by-{trusted}-",
        }
        made = await client.post("/v1/keys", json={"name": "proxied"}, headers=request_headers)
        assert made.status_code == 201
        entries = (await client.get("/v1/trail")).json()["items"]
    [entry] = [entry for entry in entries if entry["request_id"] == request_headers["X-Request-Id"]]
    assert entry["remote"] == remote
