"""Clients that disconnect before the end: their jobs are canceled in every state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import StoreUnavailable
from sluice.common.jobs.store import WorkerIdentity
from sluice.gateway.features.openai.chat import stream
from tests.support.gateway.asgi import TIMEOUT_S, Exchange
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import Gateway
from tests.support.gateway.openai import (
    EMBEDDINGS,
    HELLO,
    STREAMED,
    begin,
    error_in,
    streaming,
    work,
)
from tests.support.servers import Backend
from tests.support.worker.harness import MakeWorker, WorkerHarness, worker_maker

pytestmark = pytest.mark.fakeredis_only

REQUESTS: dict[str, tuple[Any, str]] = {
    "chat": (HELLO, "/v1/chat/completions"),
    "stream": (STREAMED, "/v1/chat/completions"),
    "embeddings": ({"input": "hello"}, EMBEDDINGS),
}
LEFT = {"reason": "the client has left"}
#: From the disconnect to the end of the job.
CANCELED_WITHIN_S = 0.25
#: The fastest of several tries counts, because the machine may be busy.
TRIES = 3


@pytest.fixture
async def workers(
    backend: Backend, keys: JobKeys, worker: WorkerIdentity
) -> AsyncIterator[MakeWorker]:
    """Workers on the gateway's Redis."""
    async for make in worker_maker(backend, keys, worker):
        yield make


@pytest.mark.parametrize(("body", "path"), REQUESTS.values(), ids=list(REQUESTS))
async def test_a_queued_job_is_canceled(gateway: Gateway, body: Any, path: str) -> None:
    request = await work(gateway, body, path)
    await request.exchange.hang_up()
    assert await request.status() == "canceled"
    assert await request.events() == [("queued", {}), ("canceled", LEFT)]
    assert gateway.hub.clients == 0


class Slow:
    """A handler that emits until it is canceled."""

    def __init__(self) -> None:
        self.speaking = asyncio.Event()

    async def __call__(self, context: Any, payload: Any) -> dict[str, Any]:
        for number in range(1, 10_000):
            data = {"delta": "x", "n": number, "attempt": context.attempt}
            await context.emit("message", data)
            self.speaking.set()
            if context.cancel_requested:
                break
            await asyncio.sleep(0.005)
        return {"text": "cut short"}


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["chat", "stream"])
async def test_a_running_job_is_canceled(gateway: Gateway, workers: MakeWorker, body: Any) -> None:
    slow = Slow()
    worker: WorkerHarness = workers(slow)
    worker.start()
    took_s = []
    for _ in range(TRIES):
        slow.speaking.clear()
        request = await work(gateway, body)
        await asyncio.wait_for(slow.speaking.wait(), TIMEOUT_S)
        if body is STREAMED:
            await request.exchange.start()
        started = time.monotonic()
        await request.exchange.hang_up()
        assert await worker.settled(request.job_id) == b"canceled"
        took_s.append(time.monotonic() - started)
        assert ("canceling", "gateway.cancel", LEFT) in await worker.parsed_events(request.job_id)
    assert min(took_s) < CANCELED_WITHIN_S


async def test_a_job_with_an_idempotency_key_is_not_canceled(gateway: Gateway) -> None:
    """A request that is aborted and repeated must not end in `canceled`."""
    for body in (HELLO, STREAMED):
        key = f"{len(body)} members"
        request = await work(gateway, body, idempotency_key=key)
        await request.exchange.hang_up()
        assert await request.status() == "queued"
        again = begin(gateway, body, idempotency_key=key)
        await request.finish()
        await again.start()
        assert again.status == 200
        assert b"Hi there, friend." in await again.body()


class DisconnectAfterResponse(Exchange):
    """Reports a disconnect as soon as the response is sent, as servers do."""

    async def _send(self, message: dict[str, Any]) -> None:
        await super()._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._hung_up.set()


async def test_a_disconnect_after_the_last_byte_cancels_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.gateway.asgi.Exchange", DisconnectAfterResponse)
    request = await streaming(gateway, "Hi")
    gateway.hub.close_streams()
    await request.exchange.rest()
    assert await request.status() == "queued"
    assert [kind for kind, _ in await request.events()] == ["queued", "running", "message"]


async def test_canceling_the_job_ends_the_request_with_499(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "FIRST_CHUNK_WAIT_S", 60.0)  # the stream has a status until then
    request, streamed = await work(gateway), await work(gateway, STREAMED)
    for one in (request, streamed):
        await gateway.client.send("DELETE", f"/v1/jobs/{one.job_id}")
        answer = await one.answer()
        error_in(answer, 499, "job_canceled")
        assert answer.header("x-should-retry") == "false"


async def test_a_client_that_stops_reading_cancels_its_job(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SEND_TIMEOUT_S", 0.05)
    request = await streaming(gateway, "Hi")
    request.exchange.take.clear()
    await request.say(" there")
    await asyncio.wait_for(request.exchange.task, TIMEOUT_S)
    assert await request.status() == "canceled"
    assert gateway.hub.clients == 0


async def test_a_failed_cancel_is_logged(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    request = await work(gateway)
    monkeypatch.setattr(gateway.state.store, "cancel", raising(StoreUnavailable("away")))
    with caplog.at_level(logging.WARNING, "sluice.gateway.features.openai.job_runner"):
        await request.exchange.hang_up()
    assert "not canceled after its client disconnected: away" in caplog.text
    assert gateway.hub.clients == 0
