"""Real worker processes: jobs run, settings are checked, stops end; an idle worker is small."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from sluice.common.contracts.images import ImageKeys
from sluice.common.contracts.workflow.keys import WorkflowKeys
from tests.support.processes.jobs import KEYS, field, pending, post, status, types, wait_for
from tests.support.processes.worker import ROOT, Process, handler_module, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts more workers")

Spawn = Callable[..., Process]


def test_the_echo_worker_drains_the_queue(server: RealServer, spawn: Spawn) -> None:
    client = server.client
    jobs = [post(client) for _ in range(50)]
    worker = spawn("worker.echo_worker", redis_url=server.url, block_ms=100)
    wait_for(client, jobs)
    for job_id in jobs:
        assert types(client, job_id) == [b"queued", b"running", b"message", b"done"]
    assert pending(client) == 0
    wait_for(client, post(client))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert "Traceback" not in worker.log
    assert all(client.ttl(key) > 0 for key in client.keys("job:*"))


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"count": "none"}, "COUNT='none'"),
        pytest.param({"consumer": "not\udcffutf8"}, "CONSUMER", marks=SLOW),
        pytest.param({"worker_handlers": "none.x"}, "WORKER_HANDLERS names 'none.x'", marks=SLOW),
    ],
)
def test_invalid_settings_print_one_clear_line(
    spawn: Spawn, environment: dict[str, object], named: str
) -> None:
    worker = spawn("worker", **{"redis_url": "unix:///nonexistent", **environment})
    assert worker.wait() == 78
    [line] = worker.log.splitlines()
    assert line.startswith("sluice: ")
    assert named in line


# -- an idle worker ----------------------------------------------------------------------------

#: A handler without imports that reports the loaded modules.
MODULES_HANDLER = """
import sys

async def modules(context, payload):
    return sorted(sys.modules)

def register(registry):
    registry.add("chat", modules)
"""
#: Packages that no idle worker imports: they are imported where a job, a trace or a setting needs
#: them.
THIRD_PARTY = (
    "boto3", "cv2", "fastapi", "httpx2", "jsonschema", "mcp", "multiprocessing", "numpy",
    "opentelemetry", "pickle", "PIL", "prometheus_client", "psutil", "pypdf",
    "snowballstemmer", "starlette", "uvicorn", "yaml",
)  # fmt: skip
#: Features that the settings of these tests do not enable.
DISABLED = (
    "sluice.common.features.bullmq.package", "sluice.common.features.bullmq.queue",
    "sluice.common.features.bullmq.scripts", "sluice.common.features.images.storage.s3",
    "worker.bullmq", "sluice.worker.execution.tracing",
    "sluice.worker.features.embedding.local", "sluice.worker.features.embedding.server",
    "sluice.worker.features.tools.mcp.servers",
)  # fmt: skip
#: Features that the echo worker does not have.
FEATURES = (
    "sluice.worker.features.agent", "sluice.worker.features.embedding",
    "sluice.worker.features.model",
    "sluice.worker.features.rag", "sluice.worker.features.shared", "sluice.worker.features.tools",
    "sluice.worker.features.webhooks", "sluice.worker.features.images.service",
    "sluice.worker.features.workflows.service", "sluice.worker.features.workflows.memory_first",
    "sluice.worker.handlers.builtin", "sluice.worker.handlers.chat", "sluice.worker.handlers.rag",
)  # fmt: skip
#: Short intervals, so that all background tasks have run before the check; independent of the
#: models for vectors and faces that are installed here.
IDLE = {
    "consumer": "idle", "block_ms": 100, "embedder": "off", "image_detector": "none",
    "heartbeat_s": 0.05, "workflow_reconcile_s": 0.05, "image_reconcile_s": 0.05,
}  # fmt: skip
#: Locks of the reconcilers while they run.
RECONCILERS = {WorkflowKeys().reconciler, ImageKeys().reconciler}
MANY_HEARTBEATS = 10


def loaded(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in packages)]


def wait_for_background_tasks(client: redis.Redis, locks: set[str]) -> None:
    """Waits for heartbeats and until each of these locks was taken."""
    heartbeats: set[object] = set()
    taken: set[str] = set()

    def all_have_run() -> bool:
        heartbeats.add(client.get(KEYS.worker("idle")))
        taken.update(key for key in locks if client.exists(key))
        return len(heartbeats) > MANY_HEARTBEATS and taken == locks

    wait_until(all_have_run)


def resident_mb(pid: int) -> float:
    status_lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [resident] = [line for line in status_lines if line.startswith("VmRSS:")]
    return int(resident.split()[1]) / 1024


@pytest.mark.slow("polls an idle worker")
@pytest.mark.parametrize(("module", "bound_mb"), [("worker.echo_worker", 50), ("worker", 70)])
def test_an_idle_worker_is_small(
    module: str, bound_mb: int, one_server: RealServer, spawn: Spawn
) -> None:
    worker = spawn(module, redis_url=one_server.url, **IDLE)
    wait_for_background_tasks(one_server.client, set())
    assert resident_mb(worker.pid) < bound_mb


@pytest.mark.slow("polls an idle worker")
def test_an_idle_worker_imports_only_what_it_needs(
    one_server: RealServer, spawn: Spawn, tmp_path: Path
) -> None:
    client, handlers = one_server.client, handler_module(tmp_path, MODULES_HANDLER)
    worker = spawn("worker", redis_url=one_server.url, **IDLE, **handlers)
    wait_for_background_tasks(client, RECONCILERS)
    job_id = post(client)
    wait_for(client, job_id)
    modules = field(client, job_id, "result")
    assert "sluice.worker.features.webhooks.service" in modules  # all services are running
    assert loaded(modules, THIRD_PARTY + DISABLED) == []
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("module", ["worker.echo_worker", "sluice.worker.bullmq.main"])
def test_smaller_workers_do_not_import_the_features(module: str) -> None:
    code = f"import json, sys, {module}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    # `sluice.worker.bullmq.main` imports BullMQ's package at start.
    found = loaded(json.loads(done.stdout), THIRD_PARTY + DISABLED + FEATURES)
    assert [name for name in found if "bullmq" not in name] == []


# -- workers that are stopped: the process always ends, and its jobs continue elsewhere --------


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
def test_a_handler_that_keeps_running_does_not_block_the_stop(
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
