"""`sluice workflow webhooks` against a real gateway with dead letters in its Redis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.processes.gateway import PYTHON_M, GatewayProcess, environment
from tests.support.servers import BUNDLED, RealServer

SLOW = (
    "starts a gateway and three commands; tests/sluice tests the client, test_webhook_dlq the API"
)
pytestmark = [pytest.mark.process, pytest.mark.slow(SLOW)]
EVENT = "wf_20260214_001:job.created:ab12cd34"


def run(gateway: GatewayProcess, *args: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{gateway.port}"
    command = [sys.executable, "-m", "sluice", "workflow", "webhooks", "--url", url, *args]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)


def test_dead_letters_are_listed_and_redriven(
    real_server: Callable[[str], RealServer], tmp_path: Path
) -> None:
    server = real_server(BUNDLED)
    server.client.flushall()
    process = GatewayProcess(PYTHON_M, tmp_path / "log", PORT="0", REDIS_URL=server.url)
    gateway = process.wait_until_listening()
    ended = run(gateway)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    ended = run(gateway, "--redrive")
    assert (ended.returncode, ended.stdout[:10]) == (0, "0 redriven")
    ended = run(gateway, "--redrive", EVENT)
    process.close()
    assert (ended.returncode, "404" in ended.stderr) == (66, True)
    assert "Traceback" not in ended.stderr
