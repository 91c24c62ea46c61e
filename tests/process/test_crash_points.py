"""A process that is killed at any crash point loses and duplicates nothing."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from common.contracts.jobs import JobKeys
from common.jobs.scripts import CORE_SCRIPT
from common.jobs.store import JobStore, NewJob
from common.process.crashpoints import CrashPoint
from common.redis.batching import ScriptBatcher
from common.redis.connection import async_client
from common.redis.pipelined import PipelinedConnection
from tests.process.test_worker_process import GROUP, QUEUE, pending, status, types
from tests.support.backends import REAL, RealServer, server_binary
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
#: Longer than a stall of the machine, so that only a dead worker loses its job. Tests do not wait
#: for it.
LEASE_MS = 9000
#: Only reached if something hangs, even on a busy machine.
TIMEOUT_S = 60.0
KEYS = JobKeys()
TERMINAL = (b"done", b"error", b"canceled")
LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")
HANDLERS = """
import asyncio
from worker.errors import TransientError

async def act(context, payload):
    await context.emit("progress", {"attempt": context.attempt})
    if payload.get("saves") and "effect" not in await context.saved():
        await context.save("effect", context.attempt)
    if context.attempt == 1:
        await asyncio.sleep(payload.get("sleep_s", 0))
    if context.attempt <= payload.get("failures", 0):
        raise TransientError("not yet")
    return (await context.saved()).get("effect", context.attempt)

def register(registry):
    registry.add("chat", act)
"""

Spawn = Callable[..., Process]


@dataclass(frozen=True)
class Case:
    """How to bring a worker to a crash point, and the state of the job after the crash."""

    left: str
    payload: dict[str, Any] = field(default_factory=dict)
    #: Additional members of the job.
    options: dict[str, Any] = field(default_factory=dict)
    #: True if another consumer read the message first and its lease has expired.
    read_by_another: bool = False
    told_to_stop: bool = False
    attempts: int = 2
    #: The result, if it is not the number of the last attempt.
    result: int = 0


LONG = {"sleep_s": 60}
FAILING = {"failures": 1}
#: The result is the attempt that did the work that must be done once.
SAVING = {"saves": True}
SCHEDULED = {"delay_ms": 300, "schedule_limit": 10}
WORKER_CASES = {
    CrashPoint.AFTER_READ: Case("queued", attempts=1),
    CrashPoint.AFTER_CLAIM: Case("queued", read_by_another=True, attempts=1),
    CrashPoint.AFTER_BEGIN: Case("running"),
    CrashPoint.AFTER_EMIT: Case("running", LONG),
    CrashPoint.BEFORE_SAVE: Case("running", SAVING, result=2),
    CrashPoint.AFTER_SAVE: Case("running", SAVING, result=1),
    CrashPoint.AFTER_HANDLER: Case("running"),
    CrashPoint.AFTER_FINISH: Case("done", attempts=1),
    CrashPoint.BEFORE_RETRY: Case("running", FAILING, {"max_attempts": 3}),
    CrashPoint.AFTER_RETRY: Case("queued", FAILING, {"max_attempts": 3}),
    CrashPoint.BEFORE_RELEASE: Case("running", LONG, told_to_stop=True),
    CrashPoint.AFTER_RELEASE: Case("queued", LONG, told_to_stop=True),
    CrashPoint.BEFORE_RENEW: Case("running", LONG),
    CrashPoint.AFTER_RENEW: Case("running", LONG),
    CrashPoint.BEFORE_PROMOTE: Case("queued", options=SCHEDULED, attempts=1),
    CrashPoint.AFTER_PROMOTE: Case("queued", options=SCHEDULED, attempts=1),
}
PROMOTE = (CrashPoint.BEFORE_PROMOTE, CrashPoint.AFTER_PROMOTE)
ENQUEUE = (CrashPoint.BEFORE_ENQUEUE, CrashPoint.AFTER_ENQUEUE)
CANCEL = (CrashPoint.BEFORE_CANCEL, CrashPoint.AFTER_CANCEL)
#: test_workflow_webhooks.py
WEBHOOKS = (CrashPoint.AFTER_DELIVERY,)
#: test_workflow_gateway_crash.py, test_workflow_rag.py
WORKFLOW = (CrashPoint.BEFORE_WORKFLOW_ANSWER, CrashPoint.AFTER_EFFECT)
#: Crash points of images are in test_images_crash.py.
IMAGES = (
    CrashPoint.AFTER_IMAGE_STAGE,
    CrashPoint.BEFORE_IMAGE_RESULT,
    CrashPoint.AFTER_IMAGE_RESULT,
)


def name_of(point: CrashPoint) -> str:
    return point.value


def test_every_crash_point_has_a_test() -> None:
    assert {*(*WORKER_CASES, *ENQUEUE, *CANCEL, *WEBHOOKS, *WORKFLOW, *IMAGES)} == set(CrashPoint)


@pytest.fixture
def server(real_server: Callable[[str], RealServer]) -> RealServer:
    """One server, the newest one: the tests are about Sluice, not Redis."""
    found = next((name for name in reversed(REAL) if server_binary(name)), REAL[0])
    server = real_server(found)
    server.client.flushall()
    return server


# -- workers -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", list(WORKER_CASES), ids=name_of)
def test_another_worker_ends_the_job_of_a_killed_one_once(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint
) -> None:
    client, case = server.client, WORKER_CASES[point]
    job_id = put(server, case.payload, **case.options)
    if case.read_by_another:
        read_by_other_consumer(client)
    doomed = worker(spawn, server, tmp_path, "doomed", SLUICE_CRASH_AT=point.value)
    if case.told_to_stop:
        wait_until(lambda: status(client, job_id) == b"running", TIMEOUT_S)
        doomed.send_signal(signal.SIGTERM)
    assert doomed.wait(TIMEOUT_S) == -signal.SIGKILL, doomed.log
    assert status(client, job_id) == case.left.encode()
    assert [kind for kind in types(client, job_id) if kind in TERMINAL] == (
        [case.left.encode()] if case.left == "done" else []
    )
    expire_leases(client, job_id)

    worker(spawn, server, tmp_path, "heir")
    assert_ended_once(client, job_id, b"done")
    assert attempts(client, job_id) == list(range(1, case.attempts + 1))
    assert client.hget(f"job:{job_id}", "result") == b"%d" % (case.result or case.attempts)


@pytest.mark.parametrize("point", PROMOTE, ids=name_of)
def test_a_crash_while_promoting_runs_the_job_once(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint
) -> None:
    job_id = put(server, {}, **SCHEDULED)
    doomed = spawn("gateway", REDIS_URL=server.url, PORT=0, SLUICE_CRASH_AT=point.value)
    assert doomed.wait(TIMEOUT_S) == -signal.SIGKILL, doomed.log
    worker(spawn, server, tmp_path, "heir")
    assert_ended_once(server.client, job_id, b"done")
    assert attempts(server.client, job_id) == [1]


# -- gateways ------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ENQUEUE, ids=name_of)
def test_a_crash_while_accepting_leaves_one_job_or_none(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint
) -> None:
    client = server.client
    request = {"json": {"task": "chat", "payload": {}}, "headers": {"Idempotency-Key": "once"}}
    doomed = gateway(spawn, server, point)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{doomed}/v1/jobs", timeout=TIMEOUT_S, **request)
    before = jobs(client)
    if point is CrashPoint.BEFORE_ENQUEUE:
        # (Both queues exist as soon as a gateway has started.)
        standing = (b"jobs:stream", b"image:result")
        assert [key for key in client.keys("*") if not key.startswith(standing)] == []
        assert client.xlen(QUEUE) == 0
    else:
        [job_id] = before
        assert len(client.hgetall(f"job:{job_id}")) == 9
        assert types(client, job_id) == [b"queued"]
        assert [fields[b"job_id"].decode() for _, fields in client.xrange(QUEUE)] == [job_id]
        assert client.get("idempotency:once") == job_id.encode()

    healthy = gateway(spawn, server)
    answer = httpx.post(f"{healthy}/v1/jobs", timeout=TIMEOUT_S, **request)
    assert answer.status_code == 202
    assert jobs(client) == [answer.json()["job_id"]]
    assert not before or before == jobs(client)
    assert client.xlen(QUEUE) == 1
    worker(spawn, server, tmp_path, "heir")
    assert_ended_once(client, answer.json()["job_id"], b"done")


@pytest.mark.parametrize("runs", [False, True], ids=["queued", "running"])
@pytest.mark.parametrize("point", CANCEL, ids=name_of)
def test_a_crash_while_canceling_can_be_repeated(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint, runs: bool
) -> None:
    client = server.client
    job_id = put(server, LONG)
    if runs:
        worker(spawn, server, tmp_path, "heir")
        wait_until(lambda: status(client, job_id) == b"running", TIMEOUT_S)
    doomed = gateway(spawn, server, point)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{doomed}/v1/jobs/{job_id}/cancel", timeout=TIMEOUT_S)
    if point is CrashPoint.BEFORE_CANCEL:
        assert types(client, job_id) == (
            [b"queued", b"running", b"progress"] if runs else [b"queued"]
        )

    healthy = gateway(spawn, server)
    answer = httpx.post(f"{healthy}/v1/jobs/{job_id}/cancel", timeout=TIMEOUT_S)
    assert answer.status_code in (200, 202)
    if not runs:
        assert answer.json()["status"] == "canceled"
        worker(spawn, server, tmp_path, "heir")
    assert_ended_once(client, job_id, b"canceled")
    assert attempts(client, job_id) == ([1] if runs else [])


# -- helpers -------------------------------------------------------------------------------


def put(server: RealServer, payload: dict[str, Any], **options: Any) -> str:
    """Enqueues a job as the gateway does."""
    job = NewJob(str(uuid.uuid4()), "chat", json.dumps(payload).encode(), 600, **options)

    async def enqueue() -> None:
        client, wire = async_client(server.url, connections=1), PipelinedConnection(server.url)
        batcher = ScriptBatcher(wire, KEYS, CORE_SCRIPT, retry_for_s=10.0)
        try:
            await JobStore(client, KEYS, batcher).enqueue(job, GROUP, 1000)
        finally:
            await batcher.close()
            await wire.aclose()
            await client.aclose()

    asyncio.run(enqueue())
    return job.job_id


def read_by_other_consumer(client: redis.Redis) -> None:
    """Another consumer has read the message, and its lease has expired."""
    client.xgroup_create(QUEUE, GROUP, id="0")
    client.xreadgroup(GROUP, "silent", {QUEUE: ">"})
    expire_leases(client)


def expire_leases(client: redis.Redis, job_id: str = "") -> None:
    """Makes all pending messages, and the lease of the job, older than a lease."""
    read = client.exists(QUEUE) and client.xinfo_groups(QUEUE)
    for entry in client.xpending_range(QUEUE, GROUP, "-", "+", 10) if read else ():
        owner, message_id = entry["consumer"], entry["message_id"]
        client.xclaim(QUEUE, GROUP, owner, 0, [message_id], idle=10 * LEASE_MS, justid=True)
    lease = f"job:{job_id}:lease"
    if client.hget(lease, "deadline_ms"):
        client.hset(lease, "deadline_ms", 1)


def worker(
    spawn: Spawn, server: RealServer, tmp_path: Path, name: str, **environment: object
) -> Process:
    (tmp_path / "crash_handlers.py").write_text(HANDLERS)
    return spawn(
        "worker",
        REDIS_URL=server.url,
        CONSUMER=name,
        LEASE_MS=LEASE_MS,
        BLOCK_MS=50,
        RETRY_BACKOFF_S=0.1,
        CANCEL_GRACE_S=0.1,
        SHUTDOWN_GRACE_S=0,
        WORKER_HANDLERS="crash_handlers",
        PYTHONPATH=str(tmp_path),
        **environment,
    )


def gateway(spawn: Spawn, server: RealServer, point: CrashPoint | None = None) -> str:
    """Starts a gateway, with a crash point or without; returns its URL."""
    crash = {} if point is None else {"SLUICE_CRASH_AT": point.value}
    process = spawn("gateway", REDIS_URL=server.url, PORT=0, **crash)
    process.wait_for_line("http://127.0.0.1:", TIMEOUT_S)
    found = wait_until(lambda: LISTENING.search(process.log), TIMEOUT_S)
    return f"http://127.0.0.1:{found[1]}"


def jobs(client: redis.Redis) -> list[str]:
    keys = (key.decode().split(":") for key in client.keys("job:*"))
    return [parts[1] for parts in keys if len(parts) == 2]


def attempts(client: redis.Redis, job_id: str) -> list[int]:
    entries = client.xrange(f"job:{job_id}:events")
    data = [json.loads(fields[b"data"]) for _, fields in entries if fields[b"type"] == b"running"]
    return [running["attempt"] for running in data]


def assert_ended_once(client: redis.Redis, job_id: str, ended: bytes) -> None:
    """The job has one terminal event, which is the last, and nothing is left behind."""
    wait_until(lambda: status(client, job_id) in TERMINAL, TIMEOUT_S)
    wait_until(lambda: client.exists(QUEUE) and client.xinfo_groups(QUEUE), TIMEOUT_S)
    wait_until(lambda: pending(client) == 0, TIMEOUT_S)
    assert status(client, job_id) == ended
    event_types = types(client, job_id)
    assert [kind for kind in event_types if kind in TERMINAL] == [ended]
    assert event_types[-1] == ended
    current = 0
    for _, fields in client.xrange(f"job:{job_id}:events"):
        attempt = json.loads(fields[b"data"]).get("attempt", 0)
        if fields[b"type"] == b"running":
            current = attempt
        elif fields[b"type"] == b"progress":
            assert attempt == current, event_types
    assert len(client.hgetall(f"job:{job_id}")) == 9
    assert jobs(client) == [job_id]
    assert client.exists(f"job:{job_id}:lease", "jobs:stream:scheduled") == 0
    assert all(client.ttl(key) > 0 for key in client.keys("job:*") + client.keys("idempotency*"))
    assert client.xlen("jobs:dlq") == 0
