"""The handlers in `examples/handlers.py` work in a real worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.contracts.jobs import JobKeys
from tests.support.backends import BUNDLED, RealServer, require_binary

ROOT = Path(__file__).parent.parent.parent
KEYS = JobKeys()


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    env = {
        **os.environ,
        "REDIS_URL": server.url,
        "PYTHONPATH": str(ROOT / "examples"),
        "WORKER_HANDLERS": "handlers",
        "BLOCK_MS": "50",
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "worker"], env=env, cwd=ROOT, stderr=subprocess.DEVNULL
    )
    yield server
    worker.terminate()
    assert worker.wait(20) == 0
    server.close()


def run(server: RealServer, task: str, payload: object) -> tuple[dict[bytes, bytes], list[Any]]:
    """Submits a job with the commands of the contract and waits for its end."""
    job_id, now, raw = str(uuid.uuid4()), "1760000000000", json.dumps(payload)
    client = server.client
    record = {"job_id": job_id, "task": task, "payload": raw, "status": "queued"}
    times = {"created_ts": now, "updated_ts": now, "ttl_s": "600", "result": "", "error": ""}
    client.hset(KEYS.job(job_id), mapping={**record, **times})
    queued = {"type": "queued", "ts": now, "step": "gateway.enqueue", "data": "{}"}
    client.xadd(KEYS.events(job_id), queued)
    client.xadd(KEYS.queue, {"job_id": job_id, "task": task, "payload": raw})
    position, deadline, events = "0", time.monotonic() + 20, []
    while time.monotonic() < deadline:
        for _, entries in client.xread({KEYS.events(job_id): position}, block=5000) or []:
            for event_id, fields in entries:
                position = event_id
                events.append((fields[b"type"], json.loads(fields[b"data"])))
                if fields[b"type"] in (b"done", b"error"):
                    return client.hgetall(KEYS.job(job_id)), events
    raise AssertionError("the job did not end")


def test_chat_streams_words(server: RealServer) -> None:
    job, events = run(server, "chat", {"text": "never lose it"})
    words = [data["text"] for kind, data in events if kind == b"message"]
    assert words == ["never", "lose", "it"]
    assert json.loads(job[b"result"]) == {"words": 3}


def test_a_plain_function_counts(server: RealServer) -> None:
    job, events = run(server, "code", {"upto": 3})
    assert [data["at"] for kind, data in events if kind == b"progress"] == [1, 2, 3]
    assert json.loads(job[b"result"]) == [1, 2, 3]


def test_an_error_has_its_kind(server: RealServer) -> None:
    job, _ = run(server, "tool", {"name": "hammer"})
    assert json.loads(job[b"error"])["kind"] == "no_such_tool"


def test_an_invalid_payload_is_refused(server: RealServer) -> None:
    job, _ = run(server, "chat", {"text": ""})
    assert json.loads(job[b"error"])["kind"] == "invalid_payload"


def test_other_tasks_keep_the_shipped_handler(server: RealServer) -> None:
    job, _ = run(server, "embed", {"a": 1})
    error = json.loads(job[b"error"])
    assert error["kind"] == "invalid_payload"
    assert "a: Extra inputs" in error["message"]
