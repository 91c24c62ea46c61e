"""Model servers that send garbage: jobs end after a few tries, with an error that says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from sluice.common.contracts.workers import ModelState
from sluice.worker.features.model.errors import ModelAnswerInvalid, ModelFailed, ModelUnavailable
from sluice.worker.features.model.requests import RETRY_DELAYS_S
from tests.support.worker.model import MakeModel, ModelHarness

pytestmark = pytest.mark.fakeredis_only

OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"Content-Type: application/json\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n"
ANSWER = b'{"choices":[{"index":0,"message":{"content":"hello"},"finish_reason":"stop"}]}'
MODELS = b'{"data":[{"id":"m"}]}'
#: Complete HTTP answers with other content: no second try helps.
CONTENT = {
    "web page": OK + b"Content-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
    "web page as JSON": JSON + b"Content-Length: 6\r\n\r\n<html>",
    "text": OK + b"Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello",
    "half an object": JSON + b"Content-Length: 40\r\n\r\n" + ANSWER[:40],
    "no body": OK + b"Content-Length: 0\r\n\r\n",
    "no packed body": JSON + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    "event of invalid JSON": STREAM + b"Content-Length: 13\r\n\r\ndata: {oops\n\n",
}
#: Answers that are not HTTP, or incomplete, as those of a server that has crashed would be.
BROKEN = {
    "no HTTP": b"\x00\x01junk\r\n\r\n",
    "another version": b"HTTP/2 200\r\n\r\n",
    "no header": OK + b"no colon here\r\n\r\n",
    "invalid length": JSON + b"Content-Length: soon\r\n\r\n{}",
    "invalid chunk": JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    "truncated body": JSON + b"Content-Length: 78\r\n\r\n" + ANSWER[:40],
    "truncated chunk": JSON + b'Transfer-Encoding: chunked\r\n\r\n20\r\n{"choi',
    "truncated event": STREAM + b'Content-Length: 400\r\n\r\ndata: {"choi',
    "stream without an event": STREAM + b"Content-Length: 6\r\n\r\n<html>",
}


class GarbageServer:
    """Sends the same bytes for every completion, and for all other requests if `always`."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.always = False
        self.asked = 0
        #: The server stops when it gets this number of completion requests.
        self.stops_at = 0
        self._server: asyncio.AbstractServer | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            completion = b"/chat/completions" in head
            self.asked += completion
            if completion and self.asked == self.stops_at:
                self.stop()
            body = b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(MODELS), MODELS)
            writer.write(self.raw if completion or self.always else JSON + body)
            await writer.drain()
        writer.close()


@pytest.fixture
async def garbage() -> AsyncIterator[GarbageServer]:
    server = GarbageServer(b"")
    await server.start()
    yield server
    server.stop()


async def fails(model: ModelHarness) -> Exception:
    with pytest.raises((ModelAnswerInvalid, ModelFailed, ModelUnavailable)) as caught:
        await model.ask()
    return caught.value


@pytest.mark.parametrize("always", [False, True], ids=["completions", "everything"])
@pytest.mark.parametrize("name", [*CONTENT, *BROKEN])
async def test_garbage_ends_the_job(
    garbage: GarbageServer, make_model: MakeModel, name: str, always: bool
) -> None:
    garbage.raw, garbage.always = {**CONTENT, **BROKEN}[name], always
    model = await make_model(model_url=garbage.url)
    assert model.state is ModelState.READY
    error = await fails(model)
    assert isinstance(error, ModelAnswerInvalid), error
    assert error.kind == "model_answer_invalid"
    tries = 1 if name in CONTENT else 1 + len(RETRY_DELAYS_S)
    assert garbage.asked == tries


async def test_an_embedding_that_is_garbage_ends_the_job(
    garbage: GarbageServer, make_model: MakeModel
) -> None:
    garbage.raw, garbage.always = BROKEN["truncated body"], True
    model = await make_model(model_url=garbage.url)
    with pytest.raises(ModelAnswerInvalid):
        await model.client.embeddings(["a"])


async def test_a_truncated_answer_of_a_server_that_crashed_is_retried(
    garbage: GarbageServer, make_model: MakeModel
) -> None:
    garbage.raw, garbage.stops_at = BROKEN["truncated body"], 1 + len(RETRY_DELAYS_S)
    model = await make_model(model_url=garbage.url)
    assert isinstance(await fails(model), ModelFailed)
    assert model.state is ModelState.DOWN


async def test_a_server_that_sends_nothing_is_down(
    garbage: GarbageServer, make_model: MakeModel
) -> None:
    """As a proxy whose server is starting."""
    garbage.always = True
    model = await make_model(model_url=garbage.url)
    assert model.state is ModelState.DOWN
    assert isinstance(await fails(model), ModelUnavailable)
