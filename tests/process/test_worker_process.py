"""Real worker processes on real servers: jobs run, and SIGTERM is a graceful stop."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.support.backends import REAL, RealServer, require_binary
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
QUEUE, GROUP = "jobs:stream", "workers"


@pytest.fixture
def one_server(real_server: Callable[[str], RealServer]) -> RealServer:
    server = real_server(REAL[0])
    server.client.flushall()
    return server


def post(client: redis.Redis, payload: str = '{"text":"hello"}', task: str = "chat") -> str:
    """Enqueues with the commands of the contract."""
    job_id, now = str(uuid.uuid4()), str(int(time.time() * 1000))
    fields = {"job_id": job_id, "task": task, "payload": payload}
    rest = {"created_ts": now, "updated_ts": now, "ttl_s": "600", "result": "", "error": ""}
    client.hset(f"job:{job_id}", mapping={**fields, "status": "queued", **rest})
    event = {"type": "queued", "ts": now, "step": "gateway.enqueue", "data": "{}"}
    client.xadd(f"job:{job_id}:events", event)
    client.xadd(QUEUE, fields)
    return job_id


def status(client: redis.Redis, job_id: str) -> bytes | None:
    return client.hget(f"job:{job_id}", "status")


def types(client: redis.Redis, job_id: str) -> list[bytes]:
    return [fields[b"type"] for _, fields in client.xrange(f"job:{job_id}:events")]


def pending(client: redis.Redis) -> int:
    return int(client.xpending(QUEUE, GROUP)["pending"])


def handlers(tmp_path: Path, source: str) -> dict[str, str]:
    """Environment with a custom handler module."""
    name = f"handlers_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
    return {"worker_handlers": name, "pythonpath": str(tmp_path)}


def test_the_echo_worker_drains_the_queue(
    server: RealServer, spawn: Callable[..., Process]
) -> None:
    client = server.client
    jobs = [post(client) for _ in range(50)]
    worker = spawn("worker.echo_worker", redis_url=server.url, block_ms=100)
    for job_id in jobs:
        wait_until(lambda job_id=job_id: status(client, job_id) == b"done")
        assert types(client, job_id) == [b"queued", b"running", b"message", b"done"]
    assert pending(client) == 0
    late = post(client)
    wait_until(lambda: status(client, late) == b"done")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert "Traceback" not in worker.log
    assert all(client.ttl(key) > 0 for key in client.keys("job:*"))


#: Runs until the test creates the file that the payload names.
WAIT_FOR_FILE = """
    import asyncio
    import os

    async def wait_for_file(context, payload):
        while not os.path.exists(payload["file"]):
            await asyncio.sleep(0.02)

    def register(registry):
        registry.add("chat", wait_for_file)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_jobs_finish(
    one_server: RealServer, spawn: Callable[..., Process], tmp_path: Path, number: int
) -> None:
    client, release = one_server.client, tmp_path / "release"
    worker = spawn(
        "worker", redis_url=one_server.url, block_ms=50, max_inflight=2,
        **handlers(tmp_path, WAIT_FOR_FILE),
    )  # fmt: skip
    jobs = [post(client, json.dumps({"file": str(release)})) for _ in range(5)]
    wait_until(lambda: [status(client, job) for job in jobs].count(b"running") == 2)
    worker.send_signal(number)
    worker.wait_for_line("stopping: 2 jobs")
    release.touch()
    assert worker.wait(40) == 0
    statuses = [status(client, job) for job in jobs]
    assert statuses == [b"done", b"done", b"queued", b"queued", b"queued"]
    assert pending(client) == 0


@pytest.mark.parametrize("max_inflight", [1, 3], ids=["all-busy", "some-free"])
def test_a_job_that_does_not_finish_in_time_is_released(
    one_server: RealServer, spawn: Callable[..., Process], max_inflight: int
) -> None:
    client = one_server.client
    worker = spawn(
        "worker.echo_worker", redis_url=one_server.url, block_ms=50, echo_delay_ms=60_000,
        max_inflight=max_inflight, shutdown_grace_s=0.3,
    )  # fmt: skip
    job_id = post(client)
    wait_until(lambda: status(client, job_id) == b"running")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert status(client, job_id) == b"queued"
    assert pending(client) == 1


def test_a_blocked_thread_does_not_block_the_stop(
    one_server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    """Threads cannot be canceled, and by default the interpreter waits for them at exit."""
    client = one_server.client
    environment = handlers(
        tmp_path,
        """
        import time

        def sleepy(context, payload):
            time.sleep(60)

        def register(registry):
            registry.add("chat", sleepy)
        """,
    )
    worker = spawn(
        "worker", redis_url=one_server.url, block_ms=50, shutdown_grace_s=0.3, max_inflight=3,
        **environment,
    )  # fmt: skip
    job_id = post(client)
    wait_until(lambda: status(client, job_id) == b"running")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert pending(client) == 1


def test_max_inflight_is_never_exceeded(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    client = server.client
    environment = handlers(
        tmp_path,
        """
        import asyncio

        running = most = 0

        async def measure(context, payload):
            global running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return most

        def register(registry):
            registry.add("chat", measure)
        """,
    )
    spawn("worker", redis_url=server.url, block_ms=50, max_inflight=3, count=16, **environment)
    jobs = [post(client) for _ in range(30)]
    for job_id in jobs:
        wait_until(lambda job_id=job_id: status(client, job_id) == b"done")
    most = [json.loads(client.hget(f"job:{job_id}", "result")) for job_id in jobs]
    assert max(most) == 3
    assert pending(client) == 0


def test_two_workers_share_the_work(server: RealServer, spawn: Callable[..., Process]) -> None:
    client = server.client
    for name in ("a", "b"):
        worker = spawn(
            "worker.echo_worker", redis_url=server.url, block_ms=50, consumer=name,
            echo_delay_ms=20, max_inflight=4,
        )  # fmt: skip
        worker.wait_for_line(f"worker {name} takes jobs")
    jobs = [post(client) for _ in range(40)]
    for job_id in jobs:
        wait_until(lambda job_id=job_id: status(client, job_id) == b"done")
        assert types(client, job_id).count(b"running") == 1
    assert pending(client) == 0


def test_custom_handlers_next_to_the_built_in_ones(
    one_server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    client = one_server.client
    environment = handlers(
        tmp_path,
        """
        from pydantic import BaseModel

        class Sum(BaseModel):
            numbers: list[int]

        async def add(context, payload: Sum):
            await context.emit("progress", {"part": 1})
            return {"sum": sum(payload.numbers)}

        def crash(context, payload):
            raise KeyError("oops")

        def register(registry):
            registry.add("tool", add)
            registry.handler("code")(crash)
        """,
    )
    spawn("worker", redis_url=one_server.url, block_ms=50, **environment)
    good, bad = post(client, '{"numbers":[1,2]}', "tool"), post(client, "{}", "tool")
    crashed, shipped = post(client, "{}", "code"), post(client, "{}", "chat")
    wait_until(lambda: all(status(client, job) in (b"done", b"error") for job in
                           (good, bad, crashed, shipped)))  # fmt: skip
    assert json.loads(client.hget(f"job:{good}", "result")) == {"sum": 3}
    assert types(client, good) == [b"queued", b"running", b"progress", b"done"]
    assert json.loads(client.hget(f"job:{bad}", "error"))["kind"] == "invalid_payload"
    assert json.loads(client.hget(f"job:{crashed}", "error"))["kind"] == "KeyError"
    refused = json.loads(client.hget(f"job:{shipped}", "error"))
    assert (refused["kind"], refused["message"][:7]) == ("invalid_payload", "payload")


def test_a_worker_survives_a_restart_of_redis(spawn: Callable[..., Process]) -> None:
    """Redis dies during a job and restarts with or without its data: the worker continues."""
    server = RealServer(require_binary(REAL[0]), "--appendonly", "yes", "--appendfsync", "always")
    try:
        worker = spawn("worker.echo_worker", redis_url=server.url, block_ms=50, echo_delay_ms=300)
        job_id = post(server.client)
        wait_until(lambda: status(server.client, job_id) == b"running")
        server.process.kill()
        server.process.wait()
        worker.wait_for_line("redis:")
        server.process = subprocess.Popen(
            server.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def done() -> bool:
            try:
                return status(server.client, job_id) == b"done"
            except redis.RedisError:
                return False

        wait_until(done)
        assert types(server.client, job_id) == [b"queued", b"running", b"message", b"done"]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        server.close()


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"count": "none"}, "COUNT='none'"),
        ({"redis_url": "http://x"}, "REDIS_URL"),
        ({"consumer": "not\udcffutf8"}, "CONSUMER"),
        ({"block_ms": 5000, "lease_ms": 1000}, "BLOCK_MS (5000)"),
        ({"worker_handlers": "no.such.module"}, "WORKER_HANDLERS names 'no.such.module'"),
    ],
)
def test_invalid_settings_print_one_clear_line(
    spawn: Callable[..., Process], environment: dict[str, object], named: str
) -> None:
    worker = spawn("worker", **{"redis_url": "unix:///nonexistent", **environment})
    assert worker.wait() == 78
    [line] = worker.log.splitlines()
    assert line.startswith("sluice: ")
    assert named in line
