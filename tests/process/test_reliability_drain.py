"""Workers that are stopped: their jobs continue elsewhere at once, and the process always ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.process.test_worker_process import QUEUE, pending, post, status, types
from tests.support.backends import REAL, RealServer, require_binary
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process

#: Sooner than a lease, which is 30 s here, or the end of a handler after 60 s.
AT_ONCE_MS = 10_000
SOON_S = 20.0

HANDLERS = """
import asyncio, time

async def slow(context, payload):
    if context.attempt == 1:
        await asyncio.sleep(payload.get("s", 60))
    return context.attempt

async def stubborn(context, payload):
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def pooled(context, payload):
    await asyncio.to_thread(time.sleep, 60)

def register(registry):
    registry.add("chat", slow)
    registry.add("plan", stubborn)
    registry.add("code", pooled)
"""


def event_times(client: redis.Redis, job_id: str, kind: bytes) -> list[int]:
    entries = client.xrange(f"job:{job_id}:events")
    return [int(fields[b"ts"]) for _, fields in entries if fields[b"type"] == kind]


def post_once(client: redis.Redis) -> str:
    """A job with `max_attempts` of 1."""
    job_id, now = str(uuid.uuid4()), str(int(time.time() * 1000))
    fields = {"job_id": job_id, "task": "chat", "payload": "{}"}
    rest = {"created_ts": now, "updated_ts": now, "ttl_s": "600", "result": "", "error": ""}
    client.hset(f"job:{job_id}", mapping={**fields, "status": "queued", **rest})
    client.hset(f"job:{job_id}:lease", mapping={"attempt": "0", "max_attempts": "1"})
    event = {"type": "queued", "ts": now, "step": "gateway.enqueue", "data": "{}"}
    client.xadd(f"job:{job_id}:events", event)
    client.xadd(QUEUE, fields)
    return job_id


def running(client: redis.Redis, job_id: str) -> None:
    wait_until(lambda: status(client, job_id) == b"running")


def test_unfinished_jobs_continue_elsewhere_at_once(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    """Although the lease is 30 seconds; and the attempt does not count."""
    client = one_server.client
    first = start("first", shutdown_grace_s=0.3)
    jobs = [post_once(client) for _ in range(3)]
    for job_id in jobs:
        running(client, job_id)
    first.send_signal(signal.SIGTERM)
    second = start("second")
    ready = time.time() * 1000
    assert first.wait(SOON_S) == 0
    for job_id in jobs:
        wait_until(lambda job_id=job_id: status(client, job_id) == b"done")
        assert types(client, job_id) == [b"queued", b"running", b"released", b"running", b"done"]
        [released] = event_times(client, job_id, b"released")
        begun = event_times(client, job_id, b"running")[1]
        assert begun - max(released, ready) < AT_ONCE_MS
        assert client.hget(f"job:{job_id}", "result") == b"2"
    assert pending(client) == 0
    second.send_signal(signal.SIGTERM)
    assert second.wait(SOON_S) == 0
    assert "Traceback" not in first.log + second.log


def test_a_second_signal_shortens_the_grace(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    client = one_server.client
    worker = start("patient", shutdown_grace_s=300)
    job_id = post(client)
    running(client, job_id)
    worker.send_signal(signal.SIGTERM)
    worker.wait_for_line("300 s to finish")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SOON_S) == 0
    assert types(client, job_id) == [b"queued", b"running", b"released"]


@pytest.mark.parametrize("third", [signal.SIGTERM, signal.SIGINT], ids=["the same", "another"])
def test_a_third_signal_ends_it_at_once(
    one_server: RealServer, start: Callable[..., Process], third: signal.Signals
) -> None:
    """Even if a handler ignores it."""
    client = one_server.client
    worker = start("stuck", shutdown_grace_s=300)
    job_id = post(client, "{}", "plan")
    running(client, job_id)
    worker.send_signal(signal.SIGTERM)
    worker.wait_for_line("stopping")
    worker.send_signal(signal.SIGTERM)
    worker.wait_for_line("did not finish in time")  # the signal handlers are already removed
    worker.send_signal(third)
    assert worker.wait(SOON_S) != 0


@pytest.mark.parametrize("task", ["plan", "code"], ids=["swallows", "in a pool's thread"])
def test_a_stubborn_handler_does_not_block_the_stop(
    one_server: RealServer, start: Callable[..., Process], task: str
) -> None:
    """Process and job are free after a few seconds without SIGKILL."""
    client = one_server.client
    worker = start("stuck", shutdown_grace_s=0.2)
    job_id = post(client, "{}", task)
    running(client, job_id)
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: types(client, job_id)[-1] == b"released", SOON_S)
    assert worker.wait(SOON_S) == 0
    assert status(client, job_id) == b"queued"


def test_waiting_messages_are_released_too(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    client = one_server.client
    first = start("first", shutdown_grace_s=0.2, task_limits="chat:1")
    jobs = [post(client, '{"s":0.1}' if number else '{"s":60}') for number in range(4)]
    running(client, jobs[0])
    wait_until(lambda: pending(client) == 4)
    first.send_signal(signal.SIGTERM)
    assert first.wait(SOON_S) == 0
    start("second")
    ready = time.time() * 1000
    for job_id in jobs[1:]:
        wait_until(lambda job_id=job_id: status(client, job_id) == b"done")
        assert event_times(client, job_id, b"running")[-1] - ready < AT_ONCE_MS


@pytest.fixture
def own_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(REAL[0]))
    yield server
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.process.pid, signal.SIGCONT)
    server.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["gone", "silent"])
def test_an_unavailable_redis_does_not_block_the_stop(
    own_server: RealServer, start: Callable[..., Process], how: signal.Signals
) -> None:
    worker = start("orphan", redis_url=own_server.url, shutdown_grace_s=0.5)
    jobs = [post(own_server.client) for _ in range(4)]
    for job_id in jobs:
        running(own_server.client, job_id)
    os.kill(own_server.process.pid, how)
    if how is signal.SIGKILL:
        own_server.process.wait()
        worker.wait_for_line("redis:")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SOON_S) == 0
    assert "Traceback" not in worker.log


def test_a_released_attempt_still_increments_the_number(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    """Released and started again: the second start is attempt 2, although one is allowed."""
    client = one_server.client
    worker = start("w", shutdown_grace_s=0)
    job_id = post_once(client)
    running(client, job_id)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(SOON_S) == 0
    start("w", shutdown_grace_s=0)  # the same name, restarted at once
    wait_until(lambda: status(client, job_id) == b"done", SOON_S)
    data = [
        json.loads(fields[b"data"]).get("attempt")
        for _, fields in client.xrange(f"job:{job_id}:events")
        if fields[b"type"] in (b"running", b"released")
    ]
    assert data == [1, 1, 2]
