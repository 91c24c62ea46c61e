"""Memory of an idle worker, and the modules that it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.contracts.images import ImageKeys
from common.contracts.jobs import JobKeys
from common.contracts.workflow.keys import WorkflowKeys
from tests.process.test_worker_process import handlers, post, status
from tests.support.backends import REAL, RealServer
from tests.worker.processes import ROOT, Process, wait_until

pytestmark = pytest.mark.process

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
#: Short intervals, so that all background tasks have run before the check.
SHORT_INTERVALS = {"heartbeat_s": 0.05, "workflow_reconcile_s": 0.05, "image_reconcile_s": 0.05}
#: Locks of the reconcilers while they run.
RECONCILERS = {WorkflowKeys().reconciler, ImageKeys().reconciler}
MANY_HEARTBEATS = 10


def loaded(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in packages)]


def test_an_idle_worker_imports_only_what_it_needs(
    real_server: Callable[[str], RealServer], spawn: Callable[..., Process], tmp_path: Path
) -> None:
    server = real_server(REAL[0])
    client = server.client
    client.flushall()
    own = handlers(tmp_path, MODULES_HANDLER)
    # Independent of the models for vectors and faces that are installed here.
    own |= {"embedder": "off", "image_detector": "none"}
    worker = spawn(
        "worker", redis_url=server.url, block_ms=100, consumer="idle", **SHORT_INTERVALS, **own
    )
    beats: set[bytes | None] = set()
    turns: set[str] = set()

    def has_run_all_background_tasks() -> bool:
        beats.add(client.get(JobKeys().worker("idle")))
        turns.update(key for key in RECONCILERS if client.exists(key))
        return len(beats) > MANY_HEARTBEATS and turns == RECONCILERS

    wait_until(has_run_all_background_tasks)
    job_id = post(client)
    wait_until(lambda: status(client, job_id) == b"done")
    modules = json.loads(client.hget(f"job:{job_id}", "result") or b"[]")
    assert "worker.features.webhooks.service" in modules  # all services are running
    assert loaded(modules, THIRD_PARTY + DISABLED) == []
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(("module", "bound_mb"), [("worker.echo_worker", 50), ("worker", 70)])
def test_an_idle_worker_is_small(
    module: str,
    bound_mb: int,
    real_server: Callable[[str], RealServer],
    spawn: Callable[..., Process],
) -> None:
    server = real_server(REAL[0])
    client = server.client
    client.flushall()
    own = {"embedder": "off", "image_detector": "none"}
    worker = spawn(
        module, redis_url=server.url, block_ms=100, consumer="idle", **SHORT_INTERVALS, **own
    )
    beats: set[bytes | None] = set()

    def has_sent_heartbeats() -> bool:
        beats.add(client.get(JobKeys().worker("idle")))
        return len(beats) > MANY_HEARTBEATS

    wait_until(has_sent_heartbeats)
    assert resident_mb(worker.pid) < bound_mb


def resident_mb(pid: int) -> float:
    status_lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [resident] = [line for line in status_lines if line.startswith("VmRSS:")]
    return int(resident.split()[1]) / 1024


@pytest.mark.parametrize("module", ["worker.echo_worker", "worker.bullmq.main"])
def test_smaller_workers_do_not_import_the_features(module: str) -> None:
    code = f"import json, sys, {module}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    # `worker.bullmq.main` imports BullMQ's package at start.
    found = loaded(json.loads(done.stdout), THIRD_PARTY + DISABLED + FEATURES)
    assert [name for name in found if "bullmq" not in name] == []
