"""A process that is killed at any crash point loses and duplicates nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import redis

from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.jobs.store import JobStore, NewJob
from sluice.common.process.crashpoints import CrashPoint
from sluice.common.redis.batching import ScriptBatcher
from tests.support.processes.gateway import GatewayProcess, StartGateway
from tests.support.processes.jobs import (
    GROUP,
    KEYS,
    QUEUE,
    attempts,
    pending,
    status,
    types,
    wait_for,
)
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import Backend, RealServer

pytestmark = [pytest.mark.process, pytest.mark.slow("kills processes at many points")]
#: Longer than a stall of the machine, so that only a dead worker loses its job. Tests do not wait
#: for it.
LEASE_MS = 9000
TERMINAL = (b"done", b"error", b"canceled")
HANDLERS = """
import asyncio
from sluice.worker.errors import TransientError

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

StartWorker = Callable[..., Process]


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
#: In ../features: test_webhooks.py, test_workflows.py, test_rag.py, test_images.py.
FEATURES = (
    CrashPoint.AFTER_DELIVERY,
    CrashPoint.BEFORE_WORKFLOW_ANSWER,
    CrashPoint.AFTER_EFFECT,
    CrashPoint.AFTER_IMAGE_STAGE,
    CrashPoint.BEFORE_IMAGE_RESULT,
    CrashPoint.AFTER_IMAGE_RESULT,
)


def points(among: Iterable[CrashPoint]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("point", among, ids=lambda point: point.value)


def test_every_crash_point_has_a_test() -> None:
    assert {*(*WORKER_CASES, *ENQUEUE, *CANCEL, *FEATURES)} == set(CrashPoint)


@pytest.fixture
def start(one_server: RealServer, start_worker: Callable[..., Process]) -> StartWorker:

    def start(name: str, **settings: object) -> Process:
        given = {"lease_ms": LEASE_MS, "retry_backoff_s": 0.1, "cancel_grace_s": 0.1}
        return start_worker(one_server, name, shutdown_grace_s=0, **given, **settings)

    return start


# -- workers -------------------------------------------------------------------------------


@points(WORKER_CASES)
def test_another_worker_ends_the_job_of_a_killed_one_once(
    one_server: RealServer, start: StartWorker, point: CrashPoint
) -> None:
    client, case = one_server.client, WORKER_CASES[point]
    job_id = put(one_server, case.payload, **case.options)
    if case.read_by_another:
        read_by_other_consumer(client)
    killed = start("killed", sluice_crash_at=point.value)
    if case.told_to_stop:
        wait_for(client, job_id, b"running")
        killed.send_signal(signal.SIGTERM)
    assert killed.wait() == -signal.SIGKILL, killed.log
    assert status(client, job_id) == case.left.encode()
    assert [kind for kind in types(client, job_id) if kind in TERMINAL] == (
        [case.left.encode()] if case.left == "done" else []
    )
    expire_leases(client, job_id)

    start("other")
    assert_ended_once(client, job_id, b"done")
    assert attempts(client, job_id) == list(range(1, case.attempts + 1))
    assert client.hget(KEYS.job(job_id), "result") == b"%d" % (case.result or case.attempts)


@points(PROMOTE)
def test_a_crash_while_promoting_runs_the_job_once(
    one_server: RealServer, spawn: Callable[..., Process], start: StartWorker, point: CrashPoint
) -> None:
    job_id = put(one_server, {}, **SCHEDULED)
    killed = spawn("gateway", redis_url=one_server.url, port=0, sluice_crash_at=point.value)
    assert killed.wait() == -signal.SIGKILL, killed.log
    start("other")
    assert_ended_once(one_server.client, job_id, b"done")
    assert attempts(one_server.client, job_id) == [1]


# -- gateways ------------------------------------------------------------------------------


def dies(gateway: GatewayProcess, path: str, **request: Any) -> None:
    with pytest.raises(httpx.TransportError):
        gateway.http.post(path, **request)


@points(ENQUEUE)
def test_a_crash_while_accepting_leaves_one_job_or_none(
    one_server: RealServer, start_gateway: StartGateway, start: StartWorker, point: CrashPoint
) -> None:
    client = one_server.client
    request = {"json": {"task": "chat", "payload": {}}, "headers": {"Idempotency-Key": "once"}}
    dies(start_gateway(one_server.url, SLUICE_CRASH_AT=point.value), "/v1/jobs", **request)
    before = jobs(client)
    if point is CrashPoint.BEFORE_ENQUEUE:
        # (Both queues exist as soon as a gateway has started.)
        standing = (b"jobs:stream", b"image:result")
        assert [key for key in client.keys("*") if not key.startswith(standing)] == []
        assert client.xlen(QUEUE) == 0
    else:
        [job_id] = before
        assert len(client.hgetall(KEYS.job(job_id))) == 9
        assert types(client, job_id) == [b"queued"]
        assert [fields[b"job_id"].decode() for _, fields in client.xrange(QUEUE)] == [job_id]
        assert client.get("idempotency:once") == job_id.encode()

    answer = start_gateway(one_server.url).http.post("/v1/jobs", **request)
    assert answer.status_code == 202
    assert jobs(client) == [answer.json()["job_id"]]
    assert not before or before == jobs(client)
    assert client.xlen(QUEUE) == 1
    start("other")
    assert_ended_once(client, answer.json()["job_id"], b"done")


@pytest.mark.parametrize("runs", [False, True], ids=["queued", "running"])
@points(CANCEL)
def test_a_crash_while_canceling_can_be_repeated(
    one_server: RealServer,
    start_gateway: StartGateway,
    start: StartWorker,
    point: CrashPoint,
    runs: bool,
) -> None:
    client = one_server.client
    job_id = put(one_server, LONG)
    if runs:
        start("other")
        wait_for(client, job_id, b"running")
    path = f"/v1/jobs/{job_id}/cancel"
    dies(start_gateway(one_server.url, SLUICE_CRASH_AT=point.value), path)
    if point is CrashPoint.BEFORE_CANCEL:
        assert types(client, job_id) == (
            [b"queued", b"running", b"progress"] if runs else [b"queued"]
        )

    answer = start_gateway(one_server.url).http.post(path)
    assert answer.status_code in (200, 202)
    if not runs:
        assert answer.json()["status"] == "canceled"
        start("other")
    assert_ended_once(client, job_id, b"canceled")
    assert attempts(client, job_id) == ([1] if runs else [])


# -- helpers -------------------------------------------------------------------------------


def put(server: RealServer, payload: dict[str, Any], **options: Any) -> str:
    job = NewJob(str(uuid.uuid4()), "chat", json.dumps(payload).encode(), 600, **options)

    async def enqueue() -> None:
        backend = Backend("server", server.url)
        batcher = ScriptBatcher(backend.wire(), KEYS, CORE_SCRIPT, retry_for_s=10.0)
        try:
            await JobStore(backend.client(), KEYS, batcher).enqueue(job, GROUP, 1000)
        finally:
            await batcher.close()
            await backend.close()

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
    if client.hget(KEYS.lease(job_id), "deadline_ms"):
        client.hset(KEYS.lease(job_id), "deadline_ms", 1)


def jobs(client: redis.Redis) -> list[str]:
    keys = (key.decode().split(":") for key in client.keys("job:*"))
    return [parts[1] for parts in keys if len(parts) == 2]


def assert_ended_once(client: redis.Redis, job_id: str, ended: bytes) -> None:
    """The job has one terminal event, which is the last, and nothing is left behind."""
    wait_for(client, job_id, *TERMINAL)
    wait_until(lambda: client.exists(QUEUE) and client.xinfo_groups(QUEUE))
    wait_until(lambda: pending(client) == 0)
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
