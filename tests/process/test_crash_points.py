"""At every named place a process may die as if by kill -9, and nothing is lost or doubled."""

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
#: Longer than a machine stands still: only who died loses a job. Nobody waits for it to pass.
LEASE_MS = 9000
#: Only what hangs takes so long, on however busy a machine.
PATIENCE_S = 60.0
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
    """How to bring a worker to a place, and how the job stands when it has died there."""

    left: str
    payload: dict[str, Any] = field(default_factory=dict)
    #: More members of the job.
    wishes: dict[str, Any] = field(default_factory=dict)
    #: Somebody else had the message first, and fell silent.
    read_by_another: bool = False
    told_to_stop: bool = False
    attempts: int = 2
    #: What it ends with, where that is not the number of its last attempt.
    result: int = 0


LONG = {"sleep_s": 60}
FAILING = {"failures": 1}
#: Which attempt has done what must be done once.
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
    CrashPoint.BEFORE_PROMOTE: Case("queued", wishes=SCHEDULED, attempts=1),
    CrashPoint.AFTER_PROMOTE: Case("queued", wishes=SCHEDULED, attempts=1),
}
PROMOTE = (CrashPoint.BEFORE_PROMOTE, CrashPoint.AFTER_PROMOTE)
ENQUEUE = (CrashPoint.BEFORE_ENQUEUE, CrashPoint.AFTER_ENQUEUE)
CANCEL = (CrashPoint.BEFORE_CANCEL, CrashPoint.AFTER_CANCEL)
#: test_workflow_webhooks.py
WEBHOOKS = (CrashPoint.AFTER_DELIVERY,)
#: test_workflow_gateway_crash.py, test_workflow_rag.py
WORKFLOW = (CrashPoint.BEFORE_WORKFLOW_ANSWER, CrashPoint.AFTER_EFFECT)
#: Those of the images are in test_images_crash.py.
IMAGES = (
    CrashPoint.AFTER_IMAGE_STAGE,
    CrashPoint.BEFORE_IMAGE_RESULT,
    CrashPoint.AFTER_IMAGE_RESULT,
)


def name_of(point: CrashPoint) -> str:
    return point.value


def test_every_place_has_its_test() -> None:
    assert {*(*WORKER_CASES, *ENQUEUE, *CANCEL, *WEBHOOKS, *WORKFLOW, *IMAGES)} == set(CrashPoint)


@pytest.fixture
def server(real_server: Callable[[str], RealServer]) -> RealServer:
    """One server, the newest there is: what is tested here is us."""
    found = next((name for name in reversed(REAL) if server_binary(name)), REAL[0])
    server = real_server(found)
    server.client.flushall()
    return server


# -- workers -------------------------------------------------------------------------------


@pytest.mark.parametrize("point", list(WORKER_CASES), ids=name_of)
def test_a_worker_dies_and_another_ends_its_job_once(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint
) -> None:
    client, case = server.client, WORKER_CASES[point]
    job_id = put(server, case.payload, **case.wishes)
    if case.read_by_another:
        leave_with_another(client)
    doomed = worker(spawn, server, tmp_path, "doomed", SLUICE_CRASH_AT=point.value)
    if case.told_to_stop:
        wait_until(lambda: status(client, job_id) == b"running", PATIENCE_S)
        doomed.send_signal(signal.SIGTERM)
    assert doomed.wait(PATIENCE_S) == -signal.SIGKILL, doomed.log
    assert status(client, job_id) == case.left.encode()
    assert [kind for kind in types(client, job_id) if kind in TERMINAL] == (
        [case.left.encode()] if case.left == "done" else []
    )
    let_a_lease_pass(client, job_id)

    worker(spawn, server, tmp_path, "heir")
    assert_ended_once(client, job_id, b"done")
    assert attempts(client, job_id) == list(range(1, case.attempts + 1))
    assert client.hget(f"job:{job_id}", "result") == b"%d" % (case.result or case.attempts)


@pytest.mark.parametrize("point", PROMOTE, ids=name_of)
def test_a_gateway_dies_promoting_and_the_job_runs_once(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint
) -> None:
    job_id = put(server, {}, **SCHEDULED)
    doomed = spawn("gateway", REDIS_URL=server.url, PORT=0, SLUICE_CRASH_AT=point.value)
    assert doomed.wait(PATIENCE_S) == -signal.SIGKILL, doomed.log
    worker(spawn, server, tmp_path, "heir")
    assert_ended_once(server.client, job_id, b"done")
    assert attempts(server.client, job_id) == [1]


# -- gateways ------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ENQUEUE, ids=name_of)
def test_a_gateway_dies_accepting_and_there_is_one_job_or_none(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint
) -> None:
    client = server.client
    request = {"json": {"task": "chat", "payload": {}}, "headers": {"Idempotency-Key": "once"}}
    doomed = gateway(spawn, server, point)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{doomed}/v1/jobs", timeout=PATIENCE_S, **request)
    before = jobs(client)
    if point is CrashPoint.BEFORE_ENQUEUE:
        # (Both queues are there as soon as a gateway is.)
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
    answer = httpx.post(f"{healthy}/v1/jobs", timeout=PATIENCE_S, **request)
    assert answer.status_code == 202
    assert jobs(client) == [answer.json()["job_id"]]
    assert not before or before == jobs(client)
    assert client.xlen(QUEUE) == 1
    worker(spawn, server, tmp_path, "heir")
    assert_ended_once(client, answer.json()["job_id"], b"done")


@pytest.mark.parametrize("runs", [False, True], ids=["queued", "running"])
@pytest.mark.parametrize("point", CANCEL, ids=name_of)
def test_a_gateway_dies_canceling_and_the_wish_can_be_repeated(
    server: RealServer, spawn: Spawn, tmp_path: Path, point: CrashPoint, runs: bool
) -> None:
    client = server.client
    job_id = put(server, LONG)
    if runs:
        worker(spawn, server, tmp_path, "heir")
        wait_until(lambda: status(client, job_id) == b"running", PATIENCE_S)
    doomed = gateway(spawn, server, point)
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{doomed}/v1/jobs/{job_id}/cancel", timeout=PATIENCE_S)
    if point is CrashPoint.BEFORE_CANCEL:
        assert types(client, job_id) == (
            [b"queued", b"running", b"progress"] if runs else [b"queued"]
        )

    healthy = gateway(spawn, server)
    answer = httpx.post(f"{healthy}/v1/jobs/{job_id}/cancel", timeout=PATIENCE_S)
    assert answer.status_code in (200, 202)
    if not runs:
        assert answer.json()["status"] == "canceled"
        worker(spawn, server, tmp_path, "heir")
    assert_ended_once(client, job_id, b"canceled")
    assert attempts(client, job_id) == ([1] if runs else [])


# -- what they share -----------------------------------------------------------------------


def put(server: RealServer, payload: dict[str, Any], **wishes: Any) -> str:
    """Accept a job as the gateway does."""
    job = NewJob(str(uuid.uuid4()), "chat", json.dumps(payload).encode(), 600, **wishes)

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


def leave_with_another(client: redis.Redis) -> None:
    """Somebody has read the message, and was not heard of for longer than a lease."""
    client.xgroup_create(QUEUE, GROUP, id="0")
    client.xreadgroup(GROUP, "silent", {QUEUE: ">"})
    let_a_lease_pass(client)


def let_a_lease_pass(client: redis.Redis, job_id: str = "") -> None:
    """Whoever has messages was not heard of for longer than a lease; nor who runs the job."""
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
    """Where a gateway listens that dies at a place, or does not."""
    crash = {} if point is None else {"SLUICE_CRASH_AT": point.value}
    process = spawn("gateway", REDIS_URL=server.url, PORT=0, **crash)
    process.wait_for_line("http://127.0.0.1:", PATIENCE_S)
    found = wait_until(lambda: LISTENING.search(process.log), PATIENCE_S)
    return f"http://127.0.0.1:{found[1]}"


def jobs(client: redis.Redis) -> list[str]:
    keys = (key.decode().split(":") for key in client.keys("job:*"))
    return [parts[1] for parts in keys if len(parts) == 2]


def attempts(client: redis.Redis, job_id: str) -> list[int]:
    entries = client.xrange(f"job:{job_id}:events")
    data = [json.loads(fields[b"data"]) for _, fields in entries if fields[b"type"] == b"running"]
    return [running["attempt"] for running in data]


def assert_ended_once(client: redis.Redis, job_id: str, ended: bytes) -> None:
    """The whole promise: one end, told once and last, and nothing left behind."""
    wait_until(lambda: status(client, job_id) in TERMINAL, PATIENCE_S)
    wait_until(lambda: client.exists(QUEUE) and client.xinfo_groups(QUEUE), PATIENCE_S)
    wait_until(lambda: pending(client) == 0, PATIENCE_S)
    assert status(client, job_id) == ended
    told = types(client, job_id)
    assert [kind for kind in told if kind in TERMINAL] == [ended]
    assert told[-1] == ended
    current = 0
    for _, fields in client.xrange(f"job:{job_id}:events"):
        attempt = json.loads(fields[b"data"]).get("attempt", 0)
        if fields[b"type"] == b"running":
            current = attempt
        elif fields[b"type"] == b"progress":
            assert attempt == current, told
    assert len(client.hgetall(f"job:{job_id}")) == 9
    assert jobs(client) == [job_id]
    assert client.exists(f"job:{job_id}:lease", "jobs:stream:scheduled") == 0
    assert all(client.ttl(key) > 0 for key in client.keys("job:*") + client.keys("idempotency*"))
    assert client.xlen("jobs:dlq") == 0
