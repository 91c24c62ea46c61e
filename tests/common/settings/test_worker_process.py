"""Settings of a worker process: its default name, hidden secrets, error messages."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from common.errors import EXIT_CONFIG
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from tests.worker.processes import ROOT


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WorkerSettings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_default_name_of_a_worker_is_host_and_pid() -> None:
    script = (
        "import os; from common.settings.base import load_settings; "
        "from common.settings.worker import WorkerSettings; s = load_settings(WorkerSettings); "
        "print(os.getpid(), s.consumer, s.bullmq_worker_name)"
    )
    pid, *names = run(script).stdout.split()
    assert names == [f"{socket.gethostname()}-{pid}"] * 2


def test_derived_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "QUEUE_STREAM_KEY": "q", "LANES": "low,high", "TENANT_LANES": "2", "QUEUE_PARTITIONS": "3",
        "WORKER_HANDLERS": "a.b, c",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(WorkerSettings)
    assert settings.service == "sluice-worker"
    assert settings.lane_names == ("high", "low", "tenants.0", "tenants.1")
    assert settings.handler_modules == ["a.b", "c"]
    assert settings.keys.queue == "{0}:q"
    assert len(settings.partitions.keys) == 3


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "sk-very-secret")
    settings = load_settings(WorkerSettings)
    assert "very-secret" not in f"{settings!r} {settings} {vars(settings)}"


def test_settings_are_immutable() -> None:
    settings = load_settings(WorkerSettings)
    with pytest.raises(Exception, match="frozen"):
        settings.lanes = "high"  # type: ignore[misc]
    assert settings.model_copy(update={"tenant_lanes": 1}).lane_names == ("tenants.0",)
    assert settings.lane_names == ()


@pytest.mark.parametrize(
    "environment",
    [
        {"COUNT": "0", "LEASE_MS": "x"},
        {"BLOCK_MS": "40000"},
        {"REDIS_URL": "http://user:hidden@box"},
    ],
)
@pytest.mark.parametrize("module", ["worker.main", "worker.echo_worker", "worker.bullmq.main"])
def test_a_settings_error_is_printed_once(
    module: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(f"from {module} import main; main()", **environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception) as caught:
        load_settings(WorkerSettings)
    assert (done.returncode, done.stderr) == (EXIT_CONFIG, f"sluice: {caught.value}\n")
