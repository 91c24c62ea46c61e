"""Workers that are stopped: their jobs continue elsewhere at once, and the process always ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.jobs import pending, post, status, types, wait_for
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
StartWorker = Callable[..., Process]

SOON_S = 20.0

HANDLERS = """
import asyncio, os, time

async def slow(context, payload):
    while "file" in payload and not os.path.exists(payload["file"]):
        await asyncio.sleep(0.02)
    if context.attempt == 1 and "file" not in payload:
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

def blocking(context, payload):
    time.sleep(60)

def register(registry):
    registry.add("chat", slow)
    registry.add("plan", stubborn)
    registry.add("code", pooled)
    registry.add("tool", blocking)
"""
SLOW = pytest.mark.slow("starts more workers")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW)])
def test_a_signal_lets_running_jobs_finish(
    one_server: RealServer, start_worker: StartWorker, tmp_path: Path, number: int
) -> None:
    client, release = one_server.client, tmp_path / "release"
    worker = start_worker(one_server, max_inflight=2)
    jobs = [post(client, json.dumps({"file": str(release)})) for _ in range(5)]
    wait_for(client, jobs[:2], b"running")
    worker.send_signal(number)
    worker.wait_for_line("stopping: 2 jobs")
    release.touch()
    assert worker.wait(40) == 0
    statuses = [status(client, job) for job in jobs]
    assert statuses == [b"done", b"done", b"queued", b"queued", b"queued"]
    assert pending(client) == 0


@SLOW
@pytest.mark.parametrize("third", [signal.SIGTERM, signal.SIGINT], ids=["the same", "another"])
def test_a_third_signal_ends_it_at_once(
    one_server: RealServer, start_worker: StartWorker, third: signal.Signals
) -> None:
    """Even if a handler ignores it."""
    client = one_server.client
    worker = start_worker(one_server, shutdown_grace_s=300)
    wait_for(client, post(client, "{}", "plan"), b"running")
    worker.send_signal(signal.SIGTERM)
    worker.wait_for_line("stopping")
    worker.send_signal(signal.SIGTERM)
    worker.wait_for_line("did not finish in time")  # the signal handlers are already removed
    worker.send_signal(third)
    assert worker.wait(SOON_S) != 0


@SLOW
@pytest.mark.parametrize(
    "task",
    ["chat", "plan", "code", "tool"],
    ids=["waits", "ignores cancel", "waits for a thread", "in a thread"],
)
def test_a_handler_that_goes_on_does_not_block_the_stop(
    one_server: RealServer, start_worker: StartWorker, task: str
) -> None:
    """Process and job are free after a few seconds without SIGKILL. Threads cannot be canceled,
    and by default the interpreter waits for them at exit.
    """
    client = one_server.client
    worker = start_worker(one_server, shutdown_grace_s=0.2)
    job_id = post(client, "{}", task)
    wait_for(client, job_id, b"running")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: types(client, job_id)[-1] == b"released", SOON_S)
    assert worker.wait(SOON_S) == 0
    assert status(client, job_id) == b"queued"
    assert pending(client) == 1
