"""Receivers that answer with random bytes: each attempt has a result, and none raises an error."""

from __future__ import annotations

import asyncio
import contextlib
import time

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.common.features.workflows.webhooks.hosts import AllowedHosts
from sluice.worker.features.http_errors import parse_retry_after
from sluice.worker.features.webhooks.sender import MOST_RETRY_AFTER_S, DeliveryResult, Sender

USUAL = settings(deadline=None, database=None, derandomize=True)
TIMEOUT_S = 5.0
STATUS_LINES = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK", b"HTTP/1.1 204", b"HTTP/1.1 429 Later", b"HTTP/1.1 503 \xff\xfe"),
        *(b"HTTP/1.1 307 There", b"HTTP/1.1 100 Continue", b"HTTP/1.1 101 Switch", b"HTTP/2 200"),
        *(b"HTTP/1.1 000 None", b"HTTP/1.1 999 Odd", b"HTTP/1.1 99999 Odd", b"HTTP/1.1 -1 Odd"),
        *(b"HTTP/1.0 500 Old", b"ICY 200 OK", b""),
    ]
)
RETRY_AFTER = st.sampled_from(
    [
        *("0", "-5", "1e999", "nan", "-inf", "1_000", "\u0661", "9" * 400, "soon", "", "5, 5"),
        *("Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 +2359", "Thu, 1 Jan 1970"),
        *("Wed, 21 Oct 2015 07:28:00 +99999", "Wed, 99 Foo 2015 99:99:99 GMT", "1 Jan 99999 0:0:0"),
    ]
) | st.text(max_size=30)
HEADERS = st.lists(
    st.one_of(
        RETRY_AFTER.map(lambda text: b"Retry-After: " + text.encode("utf-8", "replace")),
        st.sampled_from(
            [
                *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999"),
                *(b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Location: http://["),
                *(b"Connection: keep-alive", b"Set-Cookie: \xff=\xfe; domain=x", b": empty", b"x"),
                b"X: " + b"y" * 70_000,
            ]
        ),
        st.binary(max_size=30),
    ),
    max_size=4,
)
ANSWERS = st.binary(max_size=80) | st.builds(
    lambda line, headers, body: b"\r\n".join([line, *headers, b"", body]),
    STATUS_LINES,
    HEADERS,
    st.sampled_from([b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"-5\r\n", b"z" * 9000]),
)


async def deliver(answers: list[bytes]) -> list[DeliveryResult]:
    """The results of an attempt for each answer."""
    waiting = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(waiting.pop(0))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    sender = Sender(AllowedHosts.parse("127.0.0.1"), b"secret", TIMEOUT_S)
    try:
        return [await sender.send(url, b"{}") for _ in answers]
    finally:
        await sender.close()
        server.close()


@settings(USUAL, max_examples=40)
@given(st.lists(ANSWERS, min_size=1, max_size=5))
async def test_any_answer_has_a_result(answers: list[bytes]) -> None:
    began = time.monotonic()
    for result in await deliver(answers):
        assert result.ok is (result.status is not None and 200 <= result.status < 300)
        assert len(result.error) < 300
        assert not result.timed_out
        after_s = result.retry_after_s
        assert after_s is None or 0 <= after_s <= MOST_RETRY_AFTER_S
    assert time.monotonic() - began < TIMEOUT_S


@settings(USUAL, max_examples=300)
@given(RETRY_AFTER)
@example("Mon, 01 Jan 0001 00:00:00 +2359")
def test_any_retry_after_is_a_duration_or_ignored(value: str) -> None:
    after_s = parse_retry_after(value, 60.0)
    assert after_s is None or 0 <= after_s <= 60
