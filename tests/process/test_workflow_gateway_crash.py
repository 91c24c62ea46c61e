"""A gateway that dies between a change and its answer: who asks again gets what was done."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
import redis

from common.process.crashpoints import CrashPoint
from tests.process.test_crash_points import LISTENING, PATIENCE_S, Spawn
from tests.support.backends import REAL, RealServer, server_binary
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
JOBS = "/api/workflow/jobs"
KEYED = {"Idempotency-Key": "once"}
TEXT = {"type": "text", "title": "t", "text": "A Dead Letter Queue (DLQ) holds what failed."}


class Gate(NamedTuple):
    """A gateway process, and where it listens."""

    process: Process
    url: str

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return httpx.post(
            f"{self.url}{JOBS}{path}", json=body or {}, headers=headers, timeout=PATIENCE_S
        )

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{JOBS}{path}", timeout=PATIENCE_S).json()


@pytest.fixture
def server(real_server: Callable[[str], RealServer]) -> RealServer:
    """One server, the newest there is: what is tested here is us."""
    found = next((name for name in reversed(REAL) if server_binary(name)), REAL[0])
    server = real_server(found)
    server.client.flushall()
    return server


def gateway(spawn: Spawn, server: RealServer, dies_at_the: int = 0) -> Gate:
    """One that dies with its so-manieth answer, or does not."""
    crash = {"SLUICE_CRASH_AT": f"{CrashPoint.BEFORE_WORKFLOW_ANSWER.value}:{dies_at_the}"}
    process = spawn("gateway", REDIS_URL=server.url, PORT=0, **(crash if dies_at_the else {}))
    process.wait_for_line("http://127.0.0.1:", PATIENCE_S)
    found = wait_until(lambda: LISTENING.search(process.log), PATIENCE_S)
    return Gate(process, f"http://127.0.0.1:{found[1]}")


def asked_until_answered(gate: Gate, path: str, body: Any = None) -> httpx.Response:
    """As a client does that is told to come back: until then the first request may be under way."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = gate.post(path, body, **KEYED)
        if answer.status_code != 409:
            return answer
        assert answer.json()["errors"][0]["code"] == "request_in_progress", answer.text
        assert time.monotonic() < deadline
        time.sleep(float(answer.headers["retry-after"]))


def dies(gate: Gate, path: str, body: Any = None) -> None:
    with pytest.raises(httpx.TransportError):
        gate.post(path, body, **KEYED)
    assert gate.process.wait(PATIENCE_S) == -signal.SIGKILL, gate.process.log


def records(client: redis.Redis) -> list[str]:
    keys = (key.decode().split(":") for key in client.keys("workflow:job:*"))
    return sorted(parts[2] for parts in keys if len(parts) == 3)


def test_it_dies_making_a_job(server: RealServer, spawn: Spawn) -> None:
    body = {"auto_advance": True, "sources": [TEXT]}
    dies(gateway(spawn, server, 1), "", body)
    [made] = records(server.client)
    answer = asked_until_answered(gateway(spawn, server), "", body)
    assert answer.status_code == 200
    assert answer.headers["idempotency-replayed"] == "true"
    assert answer.json()["job"]["job_id"] == made
    assert records(server.client) == [made]
    assert server.client.xlen("jobs:stream") == 1  # its first step


def test_it_dies_executing_a_step(server: RealServer, spawn: Spawn) -> None:
    client = server.client
    doomed = gateway(spawn, server, 2)
    job_id = doomed.post("").json()["job"]["job_id"]
    path = f"/{job_id}/steps/sources/execute"
    body = {"payload": {"sources": [TEXT]}, "wait_s": 0}
    dies(doomed, path, body)
    [message] = client.xrange("jobs:stream")
    healthy = gateway(spawn, server)
    answer = asked_until_answered(healthy, path, body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["idempotency-replayed"] == "true"
    execution = answer.json()["execution_id"]
    assert execution == healthy.get(f"/{job_id}/status")["job"]["stepper"][0]["execution_id"]
    assert client.xrange("jobs:stream") == [message]

    # And what was started is brought to its end, and told.
    spawn("worker", REDIS_URL=server.url, CONSUMER="heir", BLOCK_MS=50, EMBEDDER="off")
    wait_until(
        lambda: healthy.get(f"/{job_id}/status")["job"]["stepper"][0]["status"] == "complete",
        PATIENCE_S,
    )
    answer = healthy.post(path, body, **KEYED)
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert answer.json()["execution_id"] == execution
    kinds = [event["type"] for event in healthy.get(f"/{job_id}/events")["events"]]
    assert kinds.count("step.started") == kinds.count("step.completed") == 1


def test_it_dies_cancelling(server: RealServer, spawn: Spawn) -> None:
    """The core job is cancelled by who asks again, had it not been."""
    client = server.client
    doomed = gateway(spawn, server, 3)
    job_id = doomed.post("").json()["job"]["job_id"]
    doomed.post(f"/{job_id}/steps/sources/execute", {"wait_s": 0})
    dies(doomed, f"/{job_id}/cancel")
    answer = asked_until_answered(gateway(spawn, server), f"/{job_id}/cancel")
    assert answer.status_code == 200
    assert answer.json()["job"]["status"] == "cancelled"
    [message] = client.xrange("jobs:stream")
    core = message[1][b"job_id"].decode()
    assert client.hget(f"job:{core}", "status") == b"canceled"
    assert client.xlen(f"job:{core}:events") == 2  # queued, and canceled once
