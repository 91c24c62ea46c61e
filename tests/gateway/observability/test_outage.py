"""Redis down, frozen, read-only, full or busy: clear errors in bounded time, and recovery."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis

from sluice.common.redis import pipelined
from sluice.gateway.events import stream_reader
from sluice.gateway.observability.status import routes as health
from tests.support.gateway.asgi import Answer
from tests.support.gateway.dead_letters import dead
from tests.support.gateway.faults import fail_first
from tests.support.gateway.harness import (
    CHAT,
    Gateway,
    Make,
    check_problem,
    make_gateway,
    short_retries,
)
from tests.support.servers import REAL, Backend, RealServer, require_binary
from tests.support.waiting import eventually

#: Maximum seconds that a request may take while Redis is down, with the short timeouts of tests.
BOUND_S = 4.0
#: Number of rounds of which the fastest counts, because the machine may be busy.
TRIES = 3


class Redis(RealServer):
    """A server that only one test uses, so that it may be stopped or frozen."""

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self.process.args, stdout=quiet, stderr=quiet)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(redis.RedisError):
                self.client.ping()
                return
            time.sleep(0.01)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture(params=REAL)
def server(request: Any) -> Iterator[Redis]:
    server = Redis(require_binary(request.param))
    yield server
    server.thaw()
    server.close()


@pytest.fixture
async def gateway(server: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setattr(health, "READY_TIMEOUT_S", 20.0)  # for busy machines
    backend = Backend("own", server.url)
    gateway = make_gateway(backend, sse_heartbeat_s=0.5)
    yield gateway
    await gateway.close()
    await backend.close()


async def check_unreachable(gateway: Gateway, *targets: str) -> None:
    async def send() -> list[Answer]:
        gets = [gateway.client.get(target) for target in targets]
        return await asyncio.gather(gateway.client.post(CHAT), *gets)

    with short_retries(*gateway.batchers):
        await check_refused(send)


async def check_refused(send: Callable[[], Awaitable[list[Answer]]]) -> None:
    """All requests get a clear 503, every time, and within BOUND_S."""
    took_s: list[float] = []
    while len(took_s) < TRIES and not any(each < BOUND_S for each in took_s):
        started = time.monotonic()
        answers = await send()
        took_s.append(time.monotonic() - started)
        for answer in answers:
            check_problem(answer, 503, "store_unavailable")
            assert int(answer.header("retry-after") or "") >= 1
    assert min(took_s) < BOUND_S


async def test_requests_fail_while_redis_is_down_and_recover(
    gateway: Gateway, server: Redis
) -> None:
    for target in ("/healthz", "/readyz"):
        answer = await gateway.client.get(target)
        assert (answer.status, answer.json()) == (200, {"ok": True})
        assert answer.header("x-request-id")
    assert await gateway.redis.dbsize() == 0
    job_id = await gateway.create()
    server.stop()
    job = f"/v1/jobs/{job_id}"
    await check_unreachable(gateway, "/readyz", job, f"{job}/events", "/v1/jobs", "/v1/jobs?q=x")
    assert (await gateway.client.get("/healthz")).status == 200
    problem = check_problem(await gateway.client.get("/readyz"), 503, "store_unavailable")
    assert str(server.dir) in problem["detail"], "the local operator sees the cause"
    send = gateway.client.send

    async def send_others() -> list[Answer]:
        answers = await asyncio.gather(
            *(send("GET", path) for path in ("/v1/dlq", "/v1/dlq/1-1")),
            *(send("DELETE", path) for path in ("/v1/dlq?all=true", "/v1/dlq/1-1", "/v1/jobs/x")),
            send("POST", "/v1/jobs/x/cancel"),
        )
        return [*answers, *await additions(gateway, "1-1")]

    with short_retries(*gateway.batchers):
        await check_refused(send_others)
    server.start()
    assert (await gateway.client.get("/readyz")).status == 200
    job_id = await gateway.create()
    await gateway.finish(job_id)
    assert [event.event for event in await gateway.watch_all(job_id)] == ["queued", "done"]


async def additions(gateway: Gateway, letter_id: str) -> list[Answer]:
    """Responses to every request that adds something, except a plain submission."""
    send = gateway.client.send
    return await asyncio.gather(
        send("POST", f"/v1/dlq/{letter_id}/redrive"),
        send("POST", "/v1/dlq/redrive", {}, {"all": True}),
        gateway.client.post({**CHAT, "delay_s": 60, "max_attempts": 2}, {"idempotency-key": "k"}),
    )


async def test_a_redis_without_memory_gets_503(gateway: Gateway, server: Redis) -> None:
    """Cancelling works: it is one of the ways to free memory."""
    job_id, letter_id = await gateway.create(), await dead(gateway)
    server.client.config_set("maxmemory", 1)
    before = await gateway.snapshot()
    await check_unreachable(gateway)
    with short_retries(*gateway.batchers):
        for answer in await additions(gateway, letter_id):
            check_problem(answer, 503, "store_unavailable")
    assert await gateway.snapshot() == before
    assert (await gateway.client.send("DELETE", f"/v1/jobs/{job_id}")).status == 200
    assert (await gateway.client.get(f"/v1/jobs/{job_id}")).json()["status"] == "canceled"
    assert [block.event for block in await gateway.watch_all(job_id)] == ["queued", "canceled"]
    server.client.config_set("maxmemory", 0)
    assert {answer.status for answer in await additions(gateway, letter_id)} == {200, 202}


async def test_an_unreachable_redis_at_startup_gets_503(tmp_path: Any) -> None:
    backend = Backend("none", f"unix://{tmp_path}/no-such-socket")
    gateway = make_gateway(backend)
    try:
        await check_unreachable(gateway, "/readyz", "/v1/jobs/x", "/v1/jobs/x/events")
    finally:
        await gateway.close()
        await backend.close()


async def test_requests_fail_while_redis_is_frozen_and_recover(
    gateway: Gateway, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REPLY_TIMEOUT_S", "CONNECT_TIMEOUT_S"):
        monkeypatch.setattr(pipelined, name, 0.3)
    monkeypatch.setattr(health, "READY_TIMEOUT_S", 0.3)
    for connection in (gateway.state.store._batcher._wire, gateway.reading):
        connection._timeout_s = 0.3  # type: ignore[union-attr]
    await gateway.create()
    server.freeze()
    await check_unreachable(gateway, "/readyz")
    server.thaw()
    await eventually(lambda: _ready(gateway))
    await gateway.create()


async def _ready(gateway: Gateway) -> bool:
    return (await gateway.client.get("/readyz")).status == 200


async def test_a_read_only_redis_gets_503(gateway: Gateway, server: Redis) -> None:
    job_id = await gateway.create()
    await gateway.redis.zadd(gateway.keys.index, {"gone": 1})
    server.client.replicaof("127.0.0.1", "1")
    await check_unreachable(gateway, "/readyz")
    assert (await gateway.client.get(f"/v1/jobs/{job_id}")).status == 200
    [listed] = (await gateway.client.get("/v1/jobs")).json()["jobs"]
    assert listed["job_id"] == job_id
    server.client.replicaof("NO", "ONE")
    assert (await gateway.client.get("/readyz")).status == 200
    await gateway.create()


async def test_streams_survive_flushed_scripts_and_closed_connections(
    gateway: Gateway, server: Redis
) -> None:
    job_id, stream = await gateway.watched()
    await eventually(lambda: gateway.hub._topics)  # live
    for kind in ("normal", "pubsub"):
        server.client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    server.client.script_flush()
    await gateway.create()
    fields: Any = {"type": "done", "ts": "1", "step": "s", "data": "{}"}
    server.client.xadd(gateway.keys.events(job_id), fields)
    assert [block.event for block in await stream.rest()] == ["done"]


async def test_long_third_party_script_ends_no_stream(gateway: Gateway, server: Redis) -> None:
    """Redis replies BUSY meanwhile; the job must not be reported as gone."""
    job_id, stream = await gateway.watched()
    server.client.config_set("lua-time-limit", 1)
    pool = server.client.connection_pool
    # No new connection is possible meanwhile.
    busy, killer = pool.get_connection(), pool.get_connection()
    busy.send_command("EVAL", "while true do end", "0")
    try:
        while (block := await stream.next()) is not None and not block.comment:
            assert block.event != "gone"
        assert block is not None, "the stream was ended"
    finally:
        killer.send_command("SCRIPT", "KILL")
        assert killer.read_response() == b"OK"
        with contextlib.suppress(redis.ResponseError):
            busy.read_response()  # the error reply after the kill
        busy.disconnect()
        killer.disconnect()
    await gateway.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["done"]


@pytest.mark.fakeredis_only
async def test_stream_retries_reading_stored_events(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis fails between the response headers and the first page; the client gets all events."""
    monkeypatch.setattr(stream_reader, "RECONNECT_S", 0.01)
    gateway = make()
    job_id = await gateway.create()
    await gateway.finish(job_id)
    errors = [redis.ConnectionError("away for a moment")] * 2
    fail_first(monkeypatch, gateway.reading, "execute_command", *errors)
    with caplog.at_level(logging.ERROR):
        assert [event.event for event in await gateway.watch_all(job_id)] == ["queued", "done"]
    assert not caplog.records


@pytest.mark.fakeredis_only
async def test_unexpected_error_does_not_stop_the_hub(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception must not stop live events for all clients."""
    monkeypatch.setattr(stream_reader, "RECONNECT_S", 0.01)
    gateway = make()
    job_id, stream = await gateway.watched()
    await eventually(lambda: gateway.hub._topics)
    error = RuntimeError("unexpected")
    left = fail_first(monkeypatch, gateway.reading, "execute_command", error)
    await eventually(lambda: not left)
    await gateway.finish(job_id)
    assert [block.event for block in await stream.rest()] == ["done"]


@pytest.mark.fakeredis_only
async def test_readiness_probe_has_a_timeout(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = make()
    monkeypatch.setattr(health, "READY_TIMEOUT_S", 0.05)

    async def never(*args: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway.state.store._client, "delete", never)
    check_problem(await gateway.client.get("/readyz"), 503, "store_unavailable")
