"""Random requests get a response below 500, and no connection or task fails with an exception."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from sluice.gateway.http import body as body_module
from sluice.gateway.http.connection_limits import ConnectionLimits
from sluice.gateway.http.problems import Problem
from sluice.gateway.http.protocol import LimitedHttpProtocol, protocol_for
from tests.support.gateway.asgi import JSON
from tests.support.gateway.harness import Gateway, make_gateway, settle
from tests.support.gateway.workflows import Workflows
from tests.support.servers import FAKE, Backend

USUAL = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
#: For a single example, which takes milliseconds.
TIMEOUT_S = 10.0
MANY_REQUESTS = pytest.mark.slow("sends many requests, which take 30 MB")


@asynccontextmanager
async def running_gateway(**options: Any) -> AsyncIterator[Gateway]:
    gateway = make_gateway(Backend(FAKE), **options)
    try:
        yield gateway
    finally:
        await gateway.close()


# -- heads -----------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """The transport of one connection, without a network."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 8080), "peername": ("127.0.0.1", 9)})
        self.sent = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: Any = None, low: Any = None) -> None: ...
    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


def statuses(sent: bytes) -> list[int]:
    assert not sent or sent.startswith(b"HTTP/1.1 "), sent
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) [A-Za-z -]*\r\n", sent)]


def words(*texts: str) -> list[bytes]:
    return [word.encode("latin-1") for text in texts for word in text.split()]


METHODS = words("GET HEAD POST PUT PATCH DELETE OPTIONS")
NAMES = words(
    "Connection Expect Content-Type Accept Accept-Encoding Authorization Cookie Origin Prefer",
    "Sec-Fetch-Site X-Forwarded-For X-Sluice-UI Idempotency-Key Last-Event-ID If-None-Match",
    "X-Request-Id Traceparent Range Host",
)
VALUES = words(
    "localhost 0 -1 1-0 99999999999999999999 close keep-alive null * */*;q= wait=1e999 \xff\xfe",
    "100-continue Bearer sluice_session=x application/json text/event-stream same-origin",
)
#: Of the length and of another protocol; such requests are refused more often.
FRAMING_NAMES = words("Content-Length Transfer-Encoding Upgrade HTTP2-Settings Host")
FRAMING_VALUES = words(
    "0 5 -1 +5 0x5 5,5 99999999999999999999 chunked gzip,chunked chunked,gzip websocket h2c a\x00b",
    "x" * 5000,
)
TARGETS = words(
    "/ // /% /%ff /v1/jobs /v1/jobs/x /healthz /openapi.json /ui/session /v1/jobs?limit=%00",
    "/ui/%2e%2e/%2e%2e/etc/passwd /ui/static/..%2f..%2fapp.py http://other.example/v1/jobs",
    "/v1/images/x/upload /v1/rag/x/documents /v1/models/%0a /v1/keys/%2e%2e /v1/trail?before=x",
    "/v1/jobs/x/events /api/workflow/jobs/x/status /v1/stats?since=%ff /metrics",
    "/" + "a" * 5000,
)
BODIES = st.sampled_from([b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"fffffffff\r\n", b"hello"])
HOST = (b"Host", b"localhost")


def request_bytes(
    method: bytes, target: bytes, version: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> bytes:
    lines = [b" ".join((method, target, version)), *(b": ".join(pair) for pair in headers)]
    return b"\r\n".join([*lines, b"", body])


def headers_of(names: Any, values: Any) -> st.SearchStrategy[list[tuple[bytes, bytes]]]:
    return st.lists(st.tuples(names, values), max_size=5).map(lambda more: [HOST, *more])


USUAL_HEADERS = headers_of(st.sampled_from(NAMES), st.sampled_from(VALUES))
USUAL_REQUESTS = st.builds(
    request_bytes,
    st.sampled_from(METHODS),
    st.sampled_from(TARGETS),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0"]),
    USUAL_HEADERS,
    st.just(b""),
)
#: Parts of these are no valid HTTP.
ODD_REQUESTS = st.builds(
    request_bytes,
    st.sampled_from(METHODS) | st.binary(max_size=6),
    st.sampled_from([*TARGETS, b"*", b"localhost:1"]) | st.binary(max_size=20).map(b"/".__add__),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/2.0", b"HTTP/9.9", b""]),
    USUAL_HEADERS
    | headers_of(st.sampled_from(FRAMING_NAMES), st.sampled_from(FRAMING_VALUES))
    | headers_of(st.sampled_from(NAMES), st.binary(max_size=20))
    | headers_of(st.binary(max_size=12), st.binary(max_size=20)),
    BODIES | st.binary(max_size=40),
)
REQUESTS = st.one_of(USUAL_REQUESTS, ODD_REQUESTS, st.binary(max_size=60))


@settings(USUAL, max_examples=120)
@given(st.lists(REQUESTS, min_size=1, max_size=3), st.data())
async def test_random_bytes_on_a_connection(requests: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(requests)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=3).map(sorted))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    async with running_gateway(max_wait_s=0.01) as gateway:
        limits = ConnectionLimits(max_connections=9, max_header_bytes=4096, header_timeout_s=60.0)
        kind = protocol_for(limits)
        config = uvicorn.Config(gateway.app, http=kind, ws="none", lifespan="off", log_config=None)
        config.load()
        wire, state = Wire(), ServerState()
        connection: LimitedHttpProtocol = kind(config, state, {})  # type: ignore[arg-type]
        connection.connection_made(wire)
        for piece in pieces:
            if piece and not wire.closed:
                connection.data_received(piece)
                await settle()
        connection.eof_received()
        connection.connection_lost(None)  # requests that wait for the client end
        if state.tasks:
            _, late = await asyncio.wait(state.tasks, timeout=TIMEOUT_S)
            assert not late
        assert all(200 <= status < 500 for status in statuses(wire.sent)), wire.sent


# -- JSON bodies -----------------------------------------------------------------------------------

VALUES_OF_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=30,
)
#: Pieces that make up both valid and invalid documents.
TOKENS = st.sampled_from(
    [
        *("{", "}", "[", "]", ",", ":", '"', "\\", "{}", "-", "1e999", "9" * 400, "NaN", "null"),
        *('"task"', '"chat"', '"payload"', '"ttl_s"', '"\\ud800"', '"\\u0000"', "\ufeff", "\x00"),
    ]
)
JSON_TEXTS = st.one_of(
    st.lists(TOKENS, max_size=40).map(lambda parts: "".join(parts).encode()),
    st.binary(max_size=60),
    VALUES_OF_JSON.map(lambda value: json.dumps(value).encode()),
    VALUES_OF_JSON.map(
        lambda value: json.dumps({"task": "chat", "payload": {"x": value}}).encode()
    ),
    st.builds(
        lambda depth, char: char * depth, st.integers(1, 3000), st.sampled_from([b"[", b'{"a":'])
    ),
)
JSON_PATHS = ("/v1/jobs", "/v1/chat/completions", "/v1/images", "/api/workflow/jobs", "/v1/keys")


@MANY_REQUESTS
@settings(USUAL, max_examples=60)
@given(st.lists(JSON_TEXTS, min_size=1, max_size=4))
async def test_random_json_bodies(bodies: list[bytes]) -> None:
    async with running_gateway(max_wait_s=0.01, max_payload_bytes=2000) as gateway:
        for path in JSON_PATHS:
            for body in bodies:
                answer = await gateway.client.send("POST", path, JSON, body)
                assert answer.status < 500, (path, answer)


def parts_of(value: Any) -> int:
    """Objects, arrays and further members."""
    if not isinstance(value, (dict, list)):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(parts_of, inner))


@USUAL
@given(VALUES_OF_JSON, st.integers(0, 12), st.booleans())
@example({'\\",{[': '[{,"\\'}, 1, True)
def test_the_part_limit_is_exact(value: Any, most: int, ascii_only: bool) -> None:
    """Also with brackets, commas, quotes and backslashes in strings."""
    document = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    if parts_of(value) <= most:
        body_module._check_parts(document, most)
    else:
        with pytest.raises(Problem) as refused:
            body_module._check_parts(document, most)
        assert (refused.value.status, refused.value.code) == (400, "too_many_parts")


# -- positions -------------------------------------------------------------------------------------

NUMBERS = st.integers(-2, 2**65) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64])
#: Texts that look like ids of events or cursors, and any others.
POSITIONS = st.one_of(
    st.builds("{}-{}".format, NUMBERS, NUMBERS),
    st.builds("{}-{}.{}".format, NUMBERS, NUMBERS, NUMBERS),
    st.builds("{}-{}".format, NUMBERS, st.text(max_size=40)),
    st.builds("{}:{}".format, NUMBERS, st.text(max_size=9)),
    NUMBERS.map(str),
    st.sampled_from(
        ["-", "+", "$", ">", "*", "(1-0", "0-0", "1-", "-1", "1-1-1", "\u0661-0", "1e9"]
    ),
    st.text(max_size=30),
    st.text("ABCDEFabcdef0123456789-_=", max_size=60),
)
LISTS = {
    "/v1/jobs": "before",
    "/v1/dlq": "before",
    "/v1/trail": "before",
    "/v1/images": "before",
    "/v1/rag/default/documents": "after",
    "/v1/rag/default/ontology": "after",
    "/v1/rag": "after",
    "/api/workflow/jobs": "cursor",
    "/api/workflow/jobs/{job_id}/results": "cursor",
    "/api/workflow/jobs/{job_id}/events": "cursor",
    "/api/workflow/webhooks/dlq": "cursor",
    "/api/workflow/webhooks/deliveries": "cursor",
}


@MANY_REQUESTS
@settings(USUAL, max_examples=60)
@given(st.lists(POSITIONS, min_size=1, max_size=4))
async def test_random_cursors_of_lists(cursors: list[str]) -> None:
    async with running_gateway() as gateway:
        job_id = await Workflows(gateway).create_job()
        await gateway.create()
        for path, name in LISTS.items():
            for cursor in cursors:
                text = quote(cursor.encode("utf-8", "surrogatepass"))
                target = f"{path.format(job_id=job_id)}?{name}={text}"
                answer = await gateway.client.get(target)
                assert answer.status in (200, 400, 422), (target, answer)


@MANY_REQUESTS
@settings(USUAL, max_examples=60)
@given(st.lists(POSITIONS, min_size=1, max_size=4))
async def test_random_positions_in_streams(positions: list[str]) -> None:
    async with running_gateway() as gateway:
        workflow_job_id = await Workflows(gateway).create_job()
        job_id = await gateway.create()
        image = await gateway.client.send("POST", "/v1/images", JSON, b"{}")
        image_id = image.json()["image_id"]
        for path in (
            f"/v1/jobs/{job_id}/events",
            f"/v1/images/{image_id}/events",
            f"/v1/images/events?image_ids={image_id}",
            f"/api/workflow/jobs/{workflow_job_id}/events/stream",
            "/v1/stream",
        ):
            for position in positions:
                raw = position.encode("utf-8", "surrogatepass").decode("latin-1")
                given_header = gateway.client.begin("GET", path, {"last-event-id": raw})
                query = f"{path}{'&' if '?' in path else '?'}last_event_id={quote(raw)}"
                for exchange in (given_header, gateway.client.begin("GET", query)):
                    await exchange.start()
                    assert exchange.status in (200, 204, 400, 422), (path, position)
                    if exchange.status == 200:
                        await exchange.hang_up()
