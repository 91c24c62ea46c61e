"""A read token at a real gateway that requires keys."""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from sluice.common.access.record import KeySpec
from sluice.common.access.store import KeyStore
from tests.support.processes.gateway import PYTHON_M, UVICORN, RawStream, StartGateway
from tests.support.servers import RealServer

pytestmark = pytest.mark.process

MESSAGE: Any = {"type": "message", "ts": "1", "step": "s", "data": '{"text":"live"}'}
DONE: Any = {"type": "done", "ts": "2", "step": "s", "data": "{}"}


async def key_in(server: RealServer, **spec: Any) -> str:
    async with redis.asyncio.from_url(server.url) as client:
        return (await KeyStore(client).create(KeySpec("page", **spec))).key


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(PYTHON_M, id="python -m"),
        pytest.param(UVICORN, id="uvicorn", marks=pytest.mark.slow("starts another gateway")),
    ],
)
async def test_a_page_watches_a_job_with_a_token(
    one_server: RealServer, start_gateway: StartGateway, command: tuple[str, ...]
) -> None:
    """As EventSource does: without headers, and again after the connection is lost."""
    gateway = start_gateway(
        one_server.url, command, AUTH="required", LOG_LEVEL="debug", SSE_HEARTBEAT_S="1"
    )
    key = await key_in(one_server, tenant="shop")
    async with gateway.http_async() as http:
        http.headers["authorization"] = f"Bearer {key}"
        body = {"task": "chat", "payload": {"text": "hello"}}
        job_id = (await http.post("/v1/jobs", json=body)).json()["job_id"]
        long, short = [
            (await http.post("/v1/tokens", json={"job_id": job_id, "ttl_s": ttl_s})).json()["token"]
            for ttl_s in (600, 4)
        ]
    target = f"/v1/jobs/{job_id}/events"
    ending = await RawStream.open(gateway.port, f"{target}?token={short}")
    async with gateway.http_async() as http:
        assert (await http.get(target)).status_code == 401
        assert (await http.get(target, params={"token": long + "x"})).status_code == 401
        read = await http.get(f"/v1/jobs/{job_id}", params={"token": long})
        assert (read.status_code, read.headers["cache-control"]) == (200, "no-store")
    stream = await RawStream.open(gateway.port, f"{target}?token={long}")
    events = f"job:{job_id}:events"
    last = one_server.client.xadd(events, MESSAGE).decode()
    await stream.wait_for("message")
    await stream.close()
    # The token of the other stream expires, which then ends without a last event.
    kinds = [block.event for block in await ending.rest()]
    assert set(kinds) <= {"hello", "queued", "message", None}
    await ending.close()

    answer = gateway.http.get(target, params={"token": short})
    assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")
    resumed = await RawStream.open(gateway.port, f"{target}?last_event_id={last}&token={long}")
    one_server.client.hset(f"job:{job_id}", "status", "done")
    one_server.client.xadd(events, DONE)
    kinds = [block.event for block in await resumed.rest() if block.event]
    assert kinds == ["hello", "done"]
    await resumed.close()
    gateway.stop()
    assert f"/v1/jobs/{job_id}/events 200" in gateway.log
    for token in (long, short):
        assert token.rpartition("~")[2] not in gateway.log
