"""A worker's settings, read by a child: the same values, the same faults, and no pydantic left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest
from pydantic import SecretStr

from common import checked_settings
from common.checked_settings import PlainSettings, Secret, worker_settings
from common.errors import EXIT_CONFIG
from common.settings import WorkerSettings, load
from tests.worker.processes import ROOT

ODD = {
    "REDIS_URL": "redis://:hidden@127.0.0.1:6399/3", "QUEUE_STREAM_KEY": "q", "LANES": "low,high",
    "TENANT_LANES": "2", "QUEUE_PARTITIONS": "3", "LEASE_MS": "1500", "BLOCK_MS": "7",
    "JOB_TIMEOUT_S": "0.5", "WORKER_HANDLERS": "a.b, c", "BULLMQ_RETRY_EVENT": "false",
    "MODEL_API_KEY": "sk-very-secret", "IMAGE_DETECTOR": "none",
}  # fmt: skip
REPORT = """
import json, sys
from common.checked_settings import worker_settings
settings = worker_settings()
values = {name: getattr(value, "get_secret_value", lambda: value)()
          for name, value in vars(settings).items()}
derived = [settings.service, settings.lane_names, settings.handler_modules, settings.keys.queue,
           len(settings.partitions.keys)]
print(json.dumps([values, derived, "pydantic" in sys.modules, repr(vars(settings))]))
"""


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


def plain(settings: WorkerSettings) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in WorkerSettings.model_fields}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("environment", [{"CONSUMER": "c", "BULLMQ_WORKER_NAME": "b"}, ODD])
def test_the_values_are_those_that_were_checked(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"CONSUMER": "c", "BULLMQ_WORKER_NAME": "b", **environment}
    done = run(REPORT, **environment)
    assert done.returncode == 0, done.stderr
    values, derived, carries_pydantic, shown = json.loads(done.stdout)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    expected = load(WorkerSettings)
    assert values == plain(expected)
    assert derived == [
        expected.service, list(expected.lane_names), expected.handler_modules,
        expected.keys.queue, len(expected.partitions.keys),
    ]  # fmt: skip
    assert not carries_pydantic
    assert "very-secret" not in shown


def test_a_worker_without_a_name_has_its_own_and_not_the_childs() -> None:
    script = (
        "import os; from common.checked_settings import worker_settings as read; s = read(); "
        "print(os.getpid(), s.consumer, s.bullmq_worker_name)"
    )
    pid, *names = run(script).stdout.split()
    assert names == [f"{socket.gethostname()}-{pid}"] * 2


@pytest.mark.parametrize(
    "environment",
    [
        {"COUNT": "0", "LEASE_MS": "x"},
        {"BLOCK_MS": "40000"},
        {"REDIS_URL": "http://user:hidden@box"},
    ],
)
def test_a_fault_is_told_once_as_ever(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("from worker.echo_worker import main; main()", **environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Exception) as caught:
        load(WorkerSettings)
    assert (done.returncode, done.stderr) == (EXIT_CONFIG, f"sluice: {caught.value}\n")


def test_where_no_process_can_be_had_it_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room() -> int:
        raise OSError("no more processes")

    monkeypatch.setattr(checked_settings, "_is_carried_anyway", lambda: False)
    monkeypatch.setattr(os, "fork", no_room)
    before = os.listdir("/proc/self/fd")
    assert isinstance(worker_settings(), WorkerSettings)
    assert os.listdir("/proc/self/fd") == before


def test_what_has_pydantic_already_reads_them_itself() -> None:
    assert isinstance(worker_settings(), WorkerSettings)


def test_plain_settings_stay_as_they_are() -> None:
    settings = PlainSettings({"lanes": "", "tenant_lanes": 0})
    with pytest.raises(AttributeError, match="lanes"):
        settings.lanes = "high"
    assert settings.model_copy(update={"tenant_lanes": 1}).lane_names == ("tenants.0",)
    assert settings.lane_names == ()
    assert (repr(Secret("x")), repr(Secret(""))) == ("Secret('**********')", "Secret('')")
