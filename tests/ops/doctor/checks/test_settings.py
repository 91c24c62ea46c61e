"""Checks of settings in the environment and in the installer's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.common.settings.base import load_settings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.ops.doctor.checks import settings as checks
from sluice.ops.doctor.finding import Health
from tests.ops.doctor.machines import expect, expect_skipped, findings_of, make_machine, write


def test_valid_environment(tmp_path: Path) -> None:
    subject = make_machine(tmp_path, environ={"PORT": "9000", "HOME": "/"})
    expect(checks.environment, subject, Health.OK, seen="1 setting, all valid")


def test_every_invalid_variable_is_reported_once(tmp_path: Path) -> None:
    environ = {"PORT": "99999", "LEASE_MS": "x", "REDIS_URL": "http://u:hunter2@h"}
    before = dict(os.environ)
    found = expect(checks.environment, make_machine(tmp_path, environ=environ), Health.FAIL)
    for name in environ:
        assert found.seen.count(f"{name}=") == 1, found.seen
    assert "hunter2" not in found.seen
    assert dict(os.environ) == before


def test_settings_files(tmp_path: Path) -> None:
    expect_skipped(checks.files, make_machine(tmp_path))
    write(tmp_path, "/etc/sluice/gateway.env", "PORT=8080\n")
    write(tmp_path, "/etc/sluice/worker.env", "LEASE_MS=9000\n; COUNT=x\n# COUNT=x\n")
    found = findings_of(checks.files, make_machine(tmp_path))
    assert [finding.status for finding in found] == [Health.OK, Health.OK]
    # The file of an instance is read after the common one; the combination is checked.
    write(tmp_path, "/etc/sluice/worker-echo.env", "BLOCK_MS='10000'\n")
    write(tmp_path, "/etc/sluice/worker-2.env", 'BLOCK_MS="500"\n')
    found = findings_of(checks.files, make_machine(tmp_path))
    assert [finding.status for finding in found] == [Health.OK, Health.OK, Health.FAIL]
    assert "worker-echo.env" in found[-1].fix


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("MAX_INFLIGHTT", "MAX_INFLIGHT"),
        ("LOGLEVEL", "LOG_LEVEL"),
        ("max_inflght", "MAX_INFLIGHT"),
        ("BACKPRESURE_MAX_BACKLOG", "BACKPRESSURE_MAX_BACKLOG"),
        ("WORKER_HANDLER", "WORKER_HANDLERS"),
        ("MAX_INFLIGHT", None),
        ("max_inflight", None),
        ("SLUICE_URL", None),
        ("HOSTNAME", None),
        ("COUNTRY", None),
        ("PATH", None),
        ("DISPLAY", None),
        ("SSH_CLIENT", None),
        ("XDG_DATA_DIRS", None),
    ],
)
def test_suggestions_for_misspelt_settings(name: str, suggestion: str | None) -> None:
    assert checks.suggest_setting(name) == suggestion


def test_spelling_check(tmp_path: Path) -> None:
    expect(checks.spelling, make_machine(tmp_path, environ={"HOME": "/"}), Health.OK)
    write(tmp_path, "/etc/sluice/worker.env", "MAX_INFLIGHTT=4\n")
    subject = make_machine(tmp_path, environ={"LEASE__MS": "1"})
    found = expect(checks.spelling, subject, Health.WARN)
    assert "MAX_INFLIGHTT in /etc/sluice/worker.env: did you mean MAX_INFLIGHT?" in found.seen
    assert "LEASE__MS in the environment: did you mean LEASE_MS?" in found.seen


def test_installed_environment(tmp_path: Path) -> None:
    write(tmp_path, "/etc/sluice/gateway.env", "PORT=9001\nJOB_TTL_S=60\n")
    write(tmp_path, "/etc/sluice/worker.env", "COUNT=3\n")
    subject = make_machine(tmp_path, environ={"JOB_TTL_S": "70"})
    with checks.installed_environment(subject, GatewaySettings):
        settings = load_settings(GatewaySettings)
    assert (settings.port, settings.job_ttl_s) == (9001, 70)
    with checks.installed_environment(subject, WorkerSettings):
        assert load_settings(WorkerSettings).count == 3
