"""`sluice workflow webhooks` against a real gateway with dead letters in its Redis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.processes.gateway import PYTHON_M, GatewayProcess, environment
from tests.support.servers import BUNDLED, RealServer, require_binary

pytestmark = pytest.mark.process
EVENT = "wf_20260214_001:job.created:ab12cd34"


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(
    redis_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    log = tmp_path_factory.mktemp("gateway") / "log"
    process = GatewayProcess(PYTHON_M, log, PORT="0", REDIS_URL=redis_server.url)
    yield process.wait_until_listening()
    process.close()


def run(gateway: GatewayProcess, *args: str) -> subprocess.CompletedProcess[str]:
    url = f"http://127.0.0.1:{gateway.port}"
    command = [sys.executable, "-m", "sluice", "workflow", "webhooks", "--url", url, *args]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)


def test_an_empty_list_prints_nothing(gateway: GatewayProcess) -> None:
    ended = run(gateway)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    ended = run(gateway, "--redrive")
    assert ended.returncode == 0
    assert ended.stdout.startswith("0 redriven")


def test_an_unknown_event_exits_with_66(gateway: GatewayProcess) -> None:
    ended = run(gateway, "--redrive", EVENT)
    assert ended.returncode == 66
    assert "404" in ended.stderr
    assert "Traceback" not in ended.stderr
