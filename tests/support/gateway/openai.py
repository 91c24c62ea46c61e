"""Shared by tests of the OpenAI API: a client, and a scripted worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sluice.common.contracts.jobs import JobKeys
from sluice.common.observability.heartbeats import Heartbeat, ModelReading
from tests.support.gateway.asgi import JSON, Answer, Exchange
from tests.support.gateway.harness import Gateway
from tests.support.waiting import eventually

CHAT, EMBEDDINGS, MODELS = "/v1/chat/completions", "/v1/embeddings", "/v1/models"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
STREAMED: dict[str, Any] = {**HELLO, "stream": True}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "cached_tokens": 4}
RESULT: dict[str, Any] = {
    "text": "Hi there, friend.",
    "finish_reason": "stop",
    "usage": USAGE,
    "ms": 120,
    "first_token_ms": 40,
    "tokens_per_s": 25.0,
    "model": "tiny",
}


@dataclass
class Work:
    """A running request and its job; the test plays the worker."""

    gateway: Gateway
    exchange: Exchange
    job_id: str
    n: int = 0
    thoughts: int = 0
    attempt: int = 0

    async def run(self) -> None:
        """Begin the next attempt."""
        self.attempt += 1
        self.n = self.thoughts = 0
        await self.gateway.emit(self.job_id, "running", {"attempt": self.attempt})

    async def say(self, *deltas: str, hint: bool = True, **more: Any) -> None:
        """Emit pieces of the answer."""
        for delta in deltas:
            self.n += 1
            data = {"delta": delta, "n": self.n, "attempt": self.attempt, **more}
            await self.gateway.emit(self.job_id, "message", data, hint=hint)

    async def think(self, *deltas: str) -> None:
        """Emit pieces of the reasoning."""
        for delta in deltas:
            self.thoughts += 1
            data = {"delta": delta, "n": self.thoughts, "attempt": self.attempt}
            await self.gateway.emit(self.job_id, "reasoning", data)

    async def finish(self, **changes: Any) -> None:
        """End the job with a result."""
        await self.end("done", result=json.dumps({**RESULT, **changes}))

    async def fail(self, kind: str, message: str = "it broke") -> None:
        """End the job with an error."""
        error = json.dumps({"kind": kind, "message": message, "attempt": 1})
        await self.end("error", error=error)

    @property
    def keys(self) -> JobKeys:
        return self.gateway.keys_of(self.job_id)

    async def end(self, status: str, **fields: str) -> None:
        record = {"status": status, **fields}
        await self.gateway.redis.hset(self.keys.job(self.job_id), mapping=record)
        await self.gateway.emit(self.job_id, status, {"ms": 1})

    async def status(self) -> str:
        """The status of the job."""
        return (await self.gateway.redis.hget(self.keys.job(self.job_id), "status")).decode()

    async def events(self) -> list[tuple[str, Any]]:
        """The events of the job: type and data."""
        entries = await self.gateway.redis.xrange(self.keys.events(self.job_id))
        return [(fields[b"type"].decode(), json.loads(fields[b"data"])) for _, fields in entries]

    async def payload(self) -> Any:
        """The payload of the job."""
        return json.loads(await self.gateway.redis.hget(self.keys.job(self.job_id), "payload"))

    async def answer(self) -> Answer:
        return await self.exchange.answer()


def begin(gateway: Gateway, body: object, path: str = CHAT, **headers: str) -> Exchange:
    """A request, sent."""
    return gateway.client.request("POST", path, {**JSON, **headers}, body)


async def send(gateway: Gateway, body: object, path: str = CHAT, **headers: str) -> Answer:
    """A request that is answered without a worker."""
    return await begin(gateway, body, path, **headers).answer()


async def work(gateway: Gateway, body: object = None, path: str = CHAT, **headers: str) -> Work:
    """A request whose job is accepted and waits for its worker."""
    before = await gateway.redis.xlen(gateway.keys.queue)
    exchange = begin(gateway, HELLO if body is None else body, path, **headers)

    async def accepted() -> Any:
        return await gateway.redis.xlen(gateway.keys.queue) > before

    await eventually(accepted)
    [(_, fields)] = await gateway.redis.xrevrange(gateway.keys.queue, count=1)
    return Work(gateway, exchange, fields[b"job_id"].decode())


async def streaming(gateway: Gateway, *deltas: str, body: object = None, **headers: str) -> Work:
    """A streamed request whose job has begun and emitted pieces of the answer."""
    request = await work(gateway, STREAMED if body is None else body, **headers)
    await request.run()
    await request.say(*deltas)
    if deltas:
        await request.exchange.start()
    return request


async def chunks(exchange: Exchange) -> list[dict[str, Any]]:
    """Every chunk of a stream that ends with `[DONE]`."""
    blocks = await exchange.rest()
    assert blocks[-1].data == "[DONE]"
    return [block.json() for block in blocks[:-1]]


def text_of(found: list[dict[str, Any]], member: str = "content") -> str:
    """The answer as a client assembles it."""
    deltas = [choice["delta"] for chunk in found for choice in chunk["choices"]]
    return "".join(delta.get(member) or "" for delta in deltas)


def error_in(answer: Answer, status: int, code: str) -> dict[str, Any]:
    """The answer is an error in OpenAI's envelope; returns it."""
    assert answer.status == status, answer
    assert answer.header("content-type") == JSON["content-type"]
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    assert error["message"]
    assert answer.header("x-request-id")
    return error


async def beat(gateway: Gateway, consumer: str = "w1", name: str = "", embedder: str = "") -> None:
    """A worker's heartbeat with the names of its models."""
    model = ModelReading(state="ready", name=name) if name else None
    known = {"started_ms": 1760000000000, "seen_ms": 1760000000000, "embedder": embedder}
    await gateway.heartbeat(Heartbeat(consumer=consumer, model=model, **known))
