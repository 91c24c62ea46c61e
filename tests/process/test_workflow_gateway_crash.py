"""A gateway that dies between a change and its response: a repeated request gets the result."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest
import redis

from common.process.crashpoints import CrashPoint
from tests.process.test_crash_points import LISTENING, TIMEOUT_S, Spawn
from tests.support.backends import REAL, RealServer, server_binary
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process
JOBS = "/api/workflow/jobs"
KEYED = {"Idempotency-Key": "once"}
TEXT = {"type": "text", "title": "t", "text": "A Dead Letter Queue (DLQ) holds what failed."}


class Gateway(NamedTuple):
    """A gateway process and its address."""

    process: Process
    url: str

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return httpx.post(
            f"{self.url}{JOBS}{path}", json=body or {}, headers=headers, timeout=TIMEOUT_S
        )

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{JOBS}{path}", timeout=TIMEOUT_S).json()


@pytest.fixture
def server(real_server: Callable[[str], RealServer]) -> RealServer:
    """One server, the newest one: the tests are about Sluice, not Redis."""
    found = next((name for name in reversed(REAL) if server_binary(name)), REAL[0])
    server = real_server(found)
    server.client.flushall()
    return server


def gateway(spawn: Spawn, server: RealServer, dies_at_response: int = 0) -> Gateway:
    """Starts a gateway that dies at the given response, or not at all."""
    crash = {"SLUICE_CRASH_AT": f"{CrashPoint.BEFORE_WORKFLOW_ANSWER.value}:{dies_at_response}"}
    process = spawn("gateway", REDIS_URL=server.url, PORT=0, **(crash if dies_at_response else {}))
    process.wait_for_line("http://127.0.0.1:", TIMEOUT_S)
    found = wait_until(lambda: LISTENING.search(process.log), TIMEOUT_S)
    return Gateway(process, f"http://127.0.0.1:{found[1]}")


def retry_until_answered(gateway_process: Gateway, path: str, body: Any = None) -> httpx.Response:
    """Repeats the request like a client that gets Retry-After, until the first one is finished."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answer = gateway_process.post(path, body, **KEYED)
        if answer.status_code != 409:
            return answer
        assert answer.json()["errors"][0]["code"] == "request_in_progress", answer.text
        assert time.monotonic() < deadline
        time.sleep(float(answer.headers["retry-after"]))


def dies(gateway_process: Gateway, path: str, body: Any = None) -> None:
    with pytest.raises(httpx.TransportError):
        gateway_process.post(path, body, **KEYED)
    assert gateway_process.process.wait(TIMEOUT_S) == -signal.SIGKILL, gateway_process.process.log


def records(client: redis.Redis) -> list[str]:
    keys = (key.decode().split(":") for key in client.keys("workflow:job:*"))
    return sorted(parts[2] for parts in keys if len(parts) == 3)


def test_a_crash_while_creating_a_job(server: RealServer, spawn: Spawn) -> None:
    body = {"auto_advance": True, "sources": [TEXT]}
    dies(gateway(spawn, server, 1), "", body)
    [created] = records(server.client)
    answer = retry_until_answered(gateway(spawn, server), "", body)
    assert answer.status_code == 200
    assert answer.headers["idempotency-replayed"] == "true"
    assert answer.json()["job"]["job_id"] == created
    assert records(server.client) == [created]
    assert server.client.xlen("jobs:stream") == 1  # its first step


def test_a_crash_while_executing_a_step(server: RealServer, spawn: Spawn) -> None:
    client = server.client
    doomed = gateway(spawn, server, 2)
    job_id = doomed.post("").json()["job"]["job_id"]
    path = f"/{job_id}/steps/sources/execute"
    body = {"payload": {"sources": [TEXT]}, "wait_s": 0}
    dies(doomed, path, body)
    [message] = client.xrange("jobs:stream")
    healthy = gateway(spawn, server)
    answer = retry_until_answered(healthy, path, body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["idempotency-replayed"] == "true"
    execution = answer.json()["execution_id"]
    assert execution == healthy.get(f"/{job_id}/status")["job"]["stepper"][0]["execution_id"]
    assert client.xrange("jobs:stream") == [message]

    # The started step is run to its end.
    spawn("worker", REDIS_URL=server.url, CONSUMER="heir", BLOCK_MS=50, EMBEDDER="off")
    wait_until(
        lambda: healthy.get(f"/{job_id}/status")["job"]["stepper"][0]["status"] == "complete",
        TIMEOUT_S,
    )
    answer = healthy.post(path, body, **KEYED)
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert answer.json()["execution_id"] == execution
    kinds = [event["type"] for event in healthy.get(f"/{job_id}/events")["events"]]
    assert kinds.count("step.started") == kinds.count("step.completed") == 1


def test_a_crash_while_canceling(server: RealServer, spawn: Spawn) -> None:
    """The repeated request cancels the job if the first one did not."""
    client = server.client
    doomed = gateway(spawn, server, 3)
    job_id = doomed.post("").json()["job"]["job_id"]
    doomed.post(f"/{job_id}/steps/sources/execute", {"wait_s": 0})
    dies(doomed, f"/{job_id}/cancel")
    answer = retry_until_answered(gateway(spawn, server), f"/{job_id}/cancel")
    assert answer.status_code == 200
    assert answer.json()["job"]["status"] == "cancelled"
    [message] = client.xrange("jobs:stream")
    core = message[1][b"job_id"].decode()
    assert client.hget(f"job:{core}", "status") == b"canceled"
    assert client.xlen(f"job:{core}:events") == 2  # queued, and canceled once
