"""The gateway's HTTP protocol over raw sockets: size, time and connection limits, invalid requests,
pipelining, shutdown.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.support.gateway.harness import CHAT, check_problem
from tests.support.gateway.raw import get, post, raw
from tests.support.processes.gateway import (
    TIMEOUT_S,
    GatewayProcess,
    StartGateway,
    complaints,
    gateway_starter,
)
from tests.support.servers import RealServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

LIMIT = 2048
#: Short, but long enough for a busy machine.
SHORT_TIMEOUT_S = 3.0
SLOW = pytest.mark.slow("starts another gateway")


@pytest.fixture(scope="module")
def gateway(
    module_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway with low limits and long timeouts, for tests that do not change it."""
    settings = {"MAX_HEADER_BYTES": str(LIMIT), "HEADER_TIMEOUT_S": "60", "BODY_TIMEOUT_S": "60"}
    for start in gateway_starter(tmp_path_factory.mktemp("gateway")):
        gateway = start(module_server.url, SSE_HEARTBEAT_S="0.1", **settings)
        yield gateway
        assert complaints(gateway.log) == []


def padded(length: int, **headers: str) -> bytes:
    """A GET request whose head has exactly this length."""
    bare = get(X_Padding="", **headers)
    return get(X_Padding="x" * (length - len(bare)), **headers)


CHUNKED_HEAD = post(CHAT, Transfer_Encoding="chunked").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"

# -- long and malformed heads ------------------------------------------------------------------


async def test_a_head_may_be_as_long_as_the_limit(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        for _ in range(2):
            connection.send(padded(LIMIT))
            assert (await connection.answer()).status == 200


TOO_LONG = (431, "headers_too_large")
MALFORMED = (400, "malformed_request")


@pytest.mark.parametrize(
    ("pieces", "refusal"),
    [
        pytest.param([padded(LIMIT + 1)], TOO_LONG, id="too long by one byte"),
        pytest.param([padded(400 * LIMIT)], TOO_LONG, id="by far"),
        pytest.param([get("/" + "x" * 2 * LIMIT)], TOO_LONG, id="long target"),
        pytest.param([get(**{f"X_{n}": "y" for n in range(500)})], TOO_LONG, id="many headers"),
        pytest.param([get()[:-2] + b"X" * 2 * LIMIT], TOO_LONG, id="unfinished name"),
        pytest.param(
            [padded(LIMIT + 1)[at : at + 100] for at in range(0, LIMIT, 100)], TOO_LONG, id="parts"
        ),
        pytest.param([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], MALFORMED, id="TLS"),
        pytest.param([b"hello\r\n\r\n"], MALFORMED, id="a word"),
        pytest.param([b"GET /healthz HTTP/9.9\r\n\r\n"], MALFORMED, id="version"),
        pytest.param([b"GET\r\n\r\n"], MALFORMED, id="no target"),
        pytest.param([get().replace(b"Host", b"Ho st")], MALFORMED, id="space in name"),
        pytest.param([post(CHAT, Content_Length="1, 2")], MALFORMED, id="two lengths"),
        pytest.param(
            [post(CHAT, Content_Length="5", Transfer_Encoding="chunked")], MALFORMED, id="both"
        ),
        pytest.param([post(CHAT, Transfer_Encoding="chunked")], MALFORMED, id="no chunks"),
        pytest.param([CHUNKED_HEAD + b"5\r\n", b'{"tas\r\n', b"what?\r\n"], MALFORMED, id="chunk"),
        pytest.param([b"CONNECT localhost:1 HTTP/1.1\r\n\r\n"], MALFORMED, id="CONNECT"),
    ],
)
async def test_a_malformed_request_is_refused_once(
    gateway: GatewayProcess, pieces: list[bytes], refusal: tuple[int, str]
) -> None:
    async with raw(gateway.port) as connection:
        for piece in pieces:
            connection.send(piece)
            await asyncio.sleep(0.01 if len(pieces) > 1 else 0)
        answer = await connection.answer()
        check_problem(answer, *refusal)
        assert answer.header("connection") == "close"
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("server") is None
        assert await connection.end() == b""


async def test_a_trailer_is_bounded_too(gateway: GatewayProcess) -> None:
    body = b'{"task":"chat","payload":{}}'
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    async with raw(gateway.port) as connection:
        connection.send(CHUNKED_HEAD + chunks + b"X-Request-Id: from-the-trailer\r\n\r\n")
        answer = await connection.answer()
        assert answer.status == 202
        assert answer.header("x-request-id") != "from-the-trailer"
        connection.send(CHUNKED_HEAD + chunks)
        await connection.drip(b"X-Long: ")
        connection.send(b"x" * 4 * LIMIT)
        check_problem(await connection.answer(), 431, "headers_too_large")


# -- slow requests -----------------------------------------------------------------------------


@pytest.mark.slow("waits for timeouts")
async def test_slow_requests_time_out(
    start_gateway: StartGateway, module_server: RealServer
) -> None:
    """The timeout applies to a whole head or body; single bytes do not extend it."""
    short = {"HEADER_TIMEOUT_S": str(SHORT_TIMEOUT_S), "BODY_TIMEOUT_S": str(SHORT_TIMEOUT_S)}
    gateway = start_gateway(module_server.url, **short)

    async def slow(
        sent: bytes, first: int | None, dripped: bytes, refusal: int | None, word: str = ""
    ) -> None:
        """Sends bytes at once, which get an answer or not, then others one by one."""
        async with raw(gateway.port) as connection:
            connection.send(sent)
            if first is not None:
                assert (await connection.answer()).status == first
            dripping = asyncio.create_task(connection.drip(dripped))
            if refusal is not None:
                answer = await connection.answer()
                check_problem(answer, refusal, "request_timeout")
                assert word in answer.json()["detail"]
                assert answer.header("connection") == "close"
            assert await connection.end() == b""
            await dripping

    wait = f"wait={2 * SHORT_TIMEOUT_S:.0f}"
    await asyncio.gather(
        slow(b"", None, padded(LIMIT), 408),
        slow(get(), 200, padded(LIMIT), 408),
        slow(post(CHAT, Content_Length="5000"), None, b" " * 4000, 408, "body"),
        # Without a request there is no answer.
        slow(b"", None, b"", None),
        slow(b"", None, b"\r\n" * 500, None),
        # The body of a request that was refused is not waited for.
        slow(post(CHAT, "/nowhere", Content_Length="5000"), 404, b" " * 4000, None),
        # A slow head after a request does not change the response to that request.
        slow(post(CHAT, Prefer=wait) + get()[:20], 202, b"", None),
    )
    assert complaints(gateway.log) == []


@SLOW
async def test_a_client_that_sends_on_can_read_the_response(
    start_gateway: StartGateway, module_server: RealServer
) -> None:
    """Closing the connection would answer further bytes with a reset, and the client may lose the
    response. The gateway ends its side only, and reads on for a few seconds.
    """
    gateway = start_gateway(module_server.url, BODY_TIMEOUT_S="0.1", MAX_HEADER_BYTES=str(LIMIT))
    requests = [
        (post(CHAT, Content_Length="5000"), 408, "request_timeout"),
        (padded(LIMIT + 1), 431, "headers_too_large"),
    ]
    for request, *refusal in requests:
        async with raw(gateway.port) as connection:
            connection.send(request)
            check_problem(await connection.answer(), *refusal)
            assert await connection.end() == b""
            for _ in range(10):
                connection.send(b" ")
                await asyncio.sleep(0.01)
            assert not connection.writer.is_closing()
    assert complaints(gateway.log) == []


async def test_a_body_may_arrive_in_pieces(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        for _ in range(2):
            await connection.drip(post(CHAT), every_s=0.002)
            assert (await connection.answer()).status == 202


@pytest.mark.slow("holds 500 connections")
async def test_slow_clients_do_not_block_others(
    start_gateway: StartGateway, module_server: RealServer
) -> None:
    gateway = start_gateway(module_server.url, HEADER_TIMEOUT_S="10")
    async with AsyncExitStack() as stack:
        slow = []
        for _ in range(500):
            slow.append(await stack.enter_async_context(raw(gateway.port)))
            slow[-1].send(b"GET /healthz HTTP/1.1\r\nHost: local")
        async with gateway.http_async() as client:
            for _ in range(20):
                assert (await client.post("/v1/jobs", json=CHAT)).status_code == 202
        for connection in slow:
            check_problem(await connection.answer(), 408, "request_timeout")
            assert await connection.end() == b""
        assert complaints(gateway.log) == []


@SLOW
async def test_too_many_connections_get_503(
    start_gateway: StartGateway, module_server: RealServer
) -> None:
    gateway = start_gateway(module_server.url, MAX_CONNECTIONS="3", HEADER_TIMEOUT_S="60")
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


# -- unusual requests --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        pytest.param(b"GET /healthz HTTP/1.0\r\n\r\n", {200}, id="old and without a name"),
        pytest.param(b"GET /healthz HTTP/1.1\r\n\r\n", {400}, id="without a name"),
        pytest.param(get().replace(b"localhost", b"evil.example"), {421}, id="another name"),
        pytest.param(
            get().replace(b"localhost", b"localhost\r\nHost: localhost"), {400}, id="two names"
        ),
        pytest.param(get("http://localhost/healthz"), {200}, id="whole address"),
        pytest.param(get("*").replace(b"GET", b"OPTIONS"), {400, 404, 405}, id="asterisk"),
        pytest.param(get("/%ff"), {404}, id="no text"),
        pytest.param(get("/healthz%0A"), {400}, id="a line break"),
        pytest.param(get("//healthz"), {404}, id="two slashes"),
        pytest.param(get("/caf\u00e9"), {400, 404}, id="not ASCII"),
    ],
)
async def test_unusual_requests_are_answered(
    gateway: GatewayProcess, data: bytes, statuses: set[int]
) -> None:
    async with raw(gateway.port) as connection:
        connection.send(data)
        assert (await connection.answer()).status in statuses


async def test_an_error_leaves_the_connection_open(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        for target in ("/nowhere", "/v1/jobs/x", "/v1/jobs/x/cancel"):
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


async def test_expect_continue(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        head, end, body = post(CHAT, Expect="100-continue").partition(b"\r\n\r\n")
        connection.send(head + end)
        assert (await connection.answer()).status == 100
        connection.send(body)
        assert (await connection.answer()).status == 202
    async with raw(gateway.port) as connection:
        head = post(CHAT, Content_Length="9000000", Expect="100-continue")
        connection.send(head.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        check_problem(await connection.answer(), 413, "body_too_large")
        assert await connection.end() == b""


# -- pipelined requests ------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order(gateway: GatewayProcess) -> None:
    async with raw(gateway.port) as connection:
        connection.send(get() + get("/nowhere") + post(CHAT) + get()[:20])
        statuses = [(await connection.answer()).status for _ in range(3)]
        connection.send(get()[20:])
        assert [*statuses, (await connection.answer()).status] == [200, 404, 202, 200]


async def test_data_after_a_request_does_not_change_its_response(gateway: GatewayProcess) -> None:
    """The first response is slow; an earlier refusal would be taken for it. Endless pipelining is
    not read ahead.
    """

    async def send(behind: bytes) -> bytes:
        async with raw(gateway.port) as connection:
            connection.send(post(CHAT, Prefer="wait=1") + behind)
            assert (await connection.answer()).status == 202
            return await connection.end()

    broken, long = b"what?\r\n\r\n", padded(10 * LIMIT)
    *ends, endless = await asyncio.gather(*map(send, (broken, long, get() * 500)))
    assert ends == [b"", b""]
    assert 50 < endless.count(b"HTTP/1.1 200 OK") < 100


async def test_a_stream_ends_with_its_client_despite_pipelining(gateway: GatewayProcess) -> None:
    """uvicorn reports a disconnect only to the last request of a connection."""

    def streams() -> float:
        lines = gateway.http.get("/metrics").text.splitlines()
        [value] = [line.split()[1] for line in lines if line.startswith("gw_sse_clients ")]
        return float(value)

    job_id = gateway.submit()
    async with raw(gateway.port) as connection:
        connection.send(get(f"/v1/jobs/{job_id}/events") + get())
        await connection.reader.readuntil(b"event: hello")
        assert streams() == 1
    await eventually(lambda: streams() == 0)
    assert complaints(gateway.log) == []


# -- shutdown ----------------------------------------------------------------------------------


async def has_ended(gateway: GatewayProcess) -> None:
    """The gateway exits without an error."""
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, gateway.process.wait, TIMEOUT_S) == 0
    assert complaints(gateway.log) == []


@SLOW
async def test_shutdown_answers_requests_in_progress(
    start_gateway: StartGateway, module_server: RealServer
) -> None:
    gateway = start_gateway(module_server.url)
    async with AsyncExitStack() as stack:
        fresh = await stack.enter_async_context(raw(gateway.port))
        begun = await stack.enter_async_context(raw(gateway.port))
        begun.send(get()[:20])
        silent = await stack.enter_async_context(raw(gateway.port))
        used = await stack.enter_async_context(raw(gateway.port))
        used.send(get())  # accepted last, so that the others are accepted when it is answered
        assert (await used.answer()).status == 200
        gateway.process.send_signal(signal.SIGTERM)
        await eventually(lambda: "Shutting down" in gateway.log)
        fresh.send(post(CHAT))
        begun.send(get()[20:])
        used.send(get())
        for connection, status in ((fresh, 202), (begun, 200), (used, 200)):
            answer = await connection.answer()
            assert answer.status == status
            assert answer.header("connection") == "close"
            assert await connection.end() == b""
        assert await silent.end() == b""
    await has_ended(gateway)


@SLOW
@pytest.mark.parametrize(
    ("trusted", "remote"), [("", "127.0.0.1"), ("127.0.0.1", "203.0.113.9")], ids=["none", "named"]
)
def test_forwarded_addresses_need_a_trusted_proxy(
    start_gateway: StartGateway, module_server: RealServer, trusted: str, remote: str
) -> None:
    gateway = start_gateway(module_server.url, FORWARDED_ALLOW_IPS=trusted)
    headers = {"X-Forwarded-For": "203.0.113.9", "X-Request-Id": f"forwarded-by-{trusted}-"}
    if not trusted:
        refused = gateway.http.post("/v1/keys", json={"name": "proxied"}, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (401, "key_required")
        admin = gateway.http.post("/v1/keys", json={"name": "admin", "scopes": ["admin"]}).json()
        headers["Authorization"] = f"Bearer {admin['key']}"
    made = gateway.http.post("/v1/keys", json={"name": "proxied"}, headers=headers)
    assert made.status_code == 201
    entries = gateway.http.get("/v1/trail").json()["items"]
    [entry] = [entry for entry in entries if entry["request_id"] == headers["X-Request-Id"]]
    assert entry["remote"] == remote
