"""Real worker processes: jobs run, settings are checked, and an idle worker is small."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from common.contracts.images import ImageKeys
from common.contracts.workflow.keys import WorkflowKeys
from tests.support.processes.jobs import KEYS, field, pending, post, types, wait_for
from tests.support.processes.worker import ROOT, Process, handler_module, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
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


AGAIN = pytest.mark.slow("starts another worker")


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"count": "none"}, "COUNT='none'"),
        pytest.param({"consumer": "not\udcffutf8"}, "CONSUMER", marks=AGAIN),
        pytest.param({"worker_handlers": "none.x"}, "WORKER_HANDLERS names 'none.x'", marks=AGAIN),
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
    "common.features.bullmq.package", "common.features.bullmq.queue",
    "common.features.bullmq.scripts", "common.features.images.storage.s3",
    "worker.bullmq", "worker.execution.tracing",
    "worker.features.embedding.local", "worker.features.embedding.server",
    "worker.features.tools.mcp.servers",
)  # fmt: skip
#: Features that the echo worker does not have.
FEATURES = (
    "worker.features.agent", "worker.features.embedding", "worker.features.model",
    "worker.features.rag", "worker.features.shared", "worker.features.tools",
    "worker.features.webhooks", "worker.features.images.service",
    "worker.features.workflows.service", "worker.features.workflows.memory_first",
    "worker.handlers.builtin", "worker.handlers.chat", "worker.handlers.rag",
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
    assert "worker.features.webhooks.service" in modules  # all services are running
    assert loaded(modules, THIRD_PARTY + DISABLED) == []
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("module", ["worker.echo_worker", "worker.bullmq.main"])
def test_smaller_workers_do_not_import_the_features(module: str) -> None:
    code = f"import json, sys, {module}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    # `worker.bullmq.main` imports BullMQ's package at start.
    found = loaded(json.loads(done.stdout), THIRD_PARTY + DISABLED + FEATURES)
    assert [name for name in found if "bullmq" not in name] == []
