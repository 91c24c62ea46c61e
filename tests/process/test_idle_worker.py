"""What a real worker carries that has nothing to do, and what it does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.contracts.images import ImageKeys
from common.contracts.jobs import JobKeys
from common.contracts.workflow import WorkflowKeys
from tests.backends import REAL, RealServer
from tests.process.test_worker_process import handlers, post, status
from tests.worker.processes import ROOT, Process, wait_until

pytestmark = pytest.mark.process

#: A handler of the user's own, which needs nothing, and tells what is there.
WITNESS = """
    import sys

    async def witness(context, payload):
        return sorted(sys.modules)

    def register(registry):
        registry.add("chat", witness)
"""
#: Packages that only somebody's settings, traces, handlers or jobs may bring into a worker, and
#: parts of our own that do.
UNUSED = (
    "annotated_types", "argparse", "boto3", "cv2", "fastapi", "html", "httpx2", "jsonschema",
    "mcp", "multiprocessing", "numpy", "opentelemetry", "pickle", "PIL", "prometheus_client",
    "psutil", "pydantic", "pydantic_core", "pydantic_settings", "pypdf", "rapidfuzz",
    "snowballstemmer", "starlette", "typing_extensions", "uvicorn", "yaml",
    "common.audit", "common.bullmq", "common.heartbeats", "common.settings",
    "common.images.s3_storage", "common.workflow.records",
    "worker.agent", "worker.compute.process", "worker.embedding.local", "worker.handlers.chat",
    "worker.handlers.tool", "worker.images.processing", "worker.rag.index", "worker.spans",
    "worker.tools.builtin.calculator", "worker.webhooks.sending", "worker.workflows.runner",
    "worker.workflows.memory_first.analysis",
)  # fmt: skip
#: Often, so that everything has looked after its things before it is asked.
SOON = {"heartbeat_s": 0.05, "workflow_reconcile_s": 0.05, "image_reconcile_s": 0.05}
#: Keys of those who look after things, while it is their turn.
RECONCILERS = {WorkflowKeys().reconciler, ImageKeys().reconciler}
MANY_BEATS = 10


def carried(modules: list[str]) -> list[str]:
    return [name for name in modules if any(f"{name}.".startswith(f"{each}.") for each in UNUSED)]


def test_an_idle_worker_carries_nothing_that_only_jobs_need(
    real_server: Callable[[str], RealServer], spawn: Callable[..., Process], tmp_path: Path
) -> None:
    server = real_server(REAL[0])
    client = server.client
    client.flushall()
    own = handlers(tmp_path, WITNESS)
    # Which models for vectors and faces are installed here is none of its business.
    own |= {"embedder": "off", "image_detector": "none"}
    worker = spawn("worker", redis_url=server.url, block_ms=100, consumer="idle", **SOON, **own)
    beats: set[bytes | None] = set()
    turns: set[str] = set()

    def has_looked_after_everything() -> bool:
        beats.add(client.get(JobKeys().worker("idle")))
        turns.update(key for key in RECONCILERS if client.exists(key))
        return len(beats) > MANY_BEATS and turns == RECONCILERS

    wait_until(has_looked_after_everything)
    job_id = post(client)
    wait_until(lambda: status(client, job_id) == b"done")
    modules = json.loads(client.hget(f"job:{job_id}", "result") or b"[]")
    assert "worker.webhooks.service" in modules  # it has all its duties
    assert carried(modules) == []
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("module", ["worker.echo_worker", "worker.bullmq.process"])
def test_smaller_workers_carry_no_more(module: str) -> None:
    code = (
        f"import json, sys, {module}\nfrom common.checked_settings import worker_settings\n"
        "worker_settings()\nprint(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    # The last one asks at once whether BullMQ's package is there.
    found = [name for name in carried(json.loads(done.stdout)) if "bullmq" not in name]
    assert found == []
