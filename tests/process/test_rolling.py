"""Rolling deploys: workers of two versions serve the same queue and are replaced under load."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.contracts.jobs import SCHEMA_VERSION, JobKeys
from common.errors import EXIT_CONFIG
from common.jobs.scripts import CORE_SCRIPT
from common.redis.partitions import Partitions
from tests.process.test_partitions_process import TIMEOUT_S, ended, post
from tests.support.backends import RealServer
from tests.worker.processes import ROOT, Process, wait_until

pytestmark = pytest.mark.process
PACKAGES = ("common", "worker")


@pytest.fixture(scope="module")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same worker with a modified script, which has another digest."""
    path = tmp_path_factory.mktemp("version")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, path / package, ignore=ignored)
    changed = path / "common" / "jobs" / "lua" / "attempt" / "begin.lua"
    changed.write_text(f"-- Another version.\n{changed.read_text()}")
    return path


def digest(path: Path) -> str:
    """Digest of a version's script."""
    code = "from common.jobs.scripts import CORE_SCRIPT; print(CORE_SCRIPT.sha)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=path, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("count", [1, 4], ids=["whole", "partitions"])
def test_two_versions_lose_and_duplicate_nothing(
    server: RealServer, spawn: Callable[..., Process], other_version: Path, count: int
) -> None:
    client, partitions = server.client, Partitions.create(JobKeys(), count)
    client.script_flush()
    names = itertools.count()

    def start(path: Path | None) -> Process:
        more = {} if path is None else {"pythonpath": path}
        worker = spawn(
            "worker.echo_worker", redis_url=server.url, queue_partitions=count, echo_delay_ms=5,
            consumer=f"w{next(names)}", block_ms=100, **more,
        )  # fmt: skip
        worker.wait_for_line("takes jobs", TIMEOUT_S)
        return worker

    jobs: list[str] = []

    def load(number: int) -> None:
        jobs.extend(post(client, partitions, at % count) for at in range(number))

    workers = [start(None), start(other_version)]
    load(100)
    for replacement in (other_version, None, None, other_version):
        load(60)
        leaving = workers.pop(0)
        leaving.send_signal(signal.SIGTERM)
        load(60)
        workers.append(start(replacement))
        assert leaving.wait(TIMEOUT_S) == 0
        assert "Traceback" not in leaving.log
    wait_until(lambda: ended(client, partitions, jobs), TIMEOUT_S)
    ours, theirs = CORE_SCRIPT.sha, digest(other_version)
    assert ours != theirs
    assert client.script_exists(ours, theirs) == [True, True]
    for job_id in jobs:
        events = client.xrange(partitions.keys_for_job(job_id).events(job_id))
        types = [fields[b"type"] for _, fields in events]
        assert types == [b"running", b"message", b"done"], job_id
    for keys in partitions.keys:
        assert client.xpending(keys.queue, "workers")["pending"] == 0


@pytest.mark.parametrize("module", ["worker.echo_worker", "gateway"])
def test_a_process_with_an_old_schema_does_not_start(
    server: RealServer, spawn: Callable[..., Process], module: str
) -> None:
    newer = {"version": SCHEMA_VERSION + 1, "partitions": 1}
    server.client.set(JobKeys().schema, json.dumps(newer))
    refused = spawn(module, redis_url=server.url, port=0)
    assert refused.wait(TIMEOUT_S) == EXIT_CONFIG
    assert f"use schema version {SCHEMA_VERSION + 1}" in refused.log
    assert "Traceback" not in refused.log


def test_another_number_of_partitions_does_not_start(
    server: RealServer, spawn: Callable[..., Process]
) -> None:
    first = spawn("worker.echo_worker", redis_url=server.url, queue_partitions=4)
    first.wait_for_line("takes jobs", TIMEOUT_S)
    other = spawn("worker.echo_worker", redis_url=server.url, queue_partitions=8)
    assert other.wait(TIMEOUT_S) == EXIT_CONFIG
    assert "divided into 4" in other.log
    assert first.popen.poll() is None
