"""The example in `examples/bullmq` works."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import install
from tests.interop.node import RELEASES, TIMEOUT_S, require_node
from tests.support.processes.worker import ROOT, Process
from tests.support.servers import SYSTEM, RealServer, require_binary

pytestmark = [pytest.mark.process, pytest.mark.slow("test_smoke runs the same job")]

EXAMPLE = ROOT / "examples" / "bullmq"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    """A Redis with the example's worker."""
    require_node()
    server = RealServer(require_binary(SYSTEM))
    worker = Process(
        "worker.bullmq",
        tmp_path / "worker.log",
        REDIS_URL=server.url,
        BULLMQ_QUEUES="video-generation",
        PYTHONPATH=str(EXAMPLE),
        WORKER_HANDLERS="video",
    )
    yield server
    worker.kill()
    server.close()


@pytest.mark.parametrize("release", RELEASES)
def test_node_submits_and_python_generates(
    server: RealServer, release: str, tmp_path: Path
) -> None:
    here = tmp_path / "example"
    (here / "node_modules").mkdir(parents=True)
    # as npm would install it
    (here / "node_modules" / "bullmq").symlink_to(install.MODULES / release)
    (here / "producer.mjs").write_text((EXAMPLE / "producer.mjs").read_text())
    done = subprocess.run(
        ["node", "producer.mjs"],
        cwd=here,
        env={**os.environ, "REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "job 1: submitted"
    assert lines[1:5] == [f"job 1: {percent} %" for percent in (25, 50, 75, 100)]
    assert re.fullmatch(
        r'job 1: done \{"videoUrl":"https://example.com/videos/[0-9a-f-]{36}\.mp4","duration":15\}',
        lines[5],
    )
