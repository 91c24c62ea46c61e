"""Checks of systemd units with a fake systemctl."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sluice.ops.doctor.checks import access as secrets
from sluice.ops.doctor.checks import systemd as units
from sluice.ops.doctor.finding import Check, Finding, Health
from sluice.ops.doctor.machine import TIMED_OUT, Machine, Output
from tests.ops.doctor.machines import expect, expect_skipped, findings_of, make_machine, write

RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "Result": "success",
    "NRestarts": "0",
    "NeedDaemonReload": "no",
}
STOPPED = {"ActiveState": "inactive", "SubState": "dead"}
DISABLED = {"UnitFileState": "disabled"}
FAILED = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
RESTARTING = {"ActiveState": "activating", "SubState": "auto-restart", "Result": "signal"}
INVALID_SETTING = "exited with code 78: a setting is invalid"
GONE = {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}
SCORE = "→ Overall exposure level for {unit}: {score} SAFE 😀\n"


class Systemd:
    """A fake systemd with some units."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "run/systemd/system").mkdir(parents=True)
        self.units = {name: dict(RUNNING) for name in units.UNITS}
        self.scores: dict[str, float] = {}
        self.calls: list[Sequence[str]] = []

    def run(self, command: Sequence[str], timeout_s: float) -> Output:
        self.calls.append(command)
        if command[0] == "systemd-analyze":
            unit = command[-1]
            default = 0.2 if unit == units.GATEWAY else 1.1
            score = self.scores.get(unit, default)
            return Output(0, SCORE.format(unit=unit, score=score))
        if "list-units" in command:
            instances = [name for name in self.units if "@" in name]
            return Output(0, "".join(f"{name} loaded active running x\n" for name in instances))
        names = command[command.index("--") + 1 :]
        if "Listen" in command:
            return Output(0, self.units[names[0]].get("Listen", "") + "\n")
        blocks = [{"Id": name, **self.units.get(name, GONE)} for name in names]
        texts = ["\n".join(f"{key}={value}" for key, value in block.items()) for block in blocks]
        return Output(0, "\n\n".join(texts) + "\n")

    @property
    def machine(self) -> Machine:
        return make_machine(self.root, run=self.run)

    def finding(self, name: str) -> Finding:
        found = findings_of(units.state, self.machine)
        [finding] = [finding for finding in found if finding.seen.startswith(name)]
        return finding

    def status_in(self, name: str, state: Mapping[str, str]) -> Health:
        self.units[name] = {**RUNNING, **state}
        return self.finding(name).status


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


@pytest.mark.parametrize("check", units.CHECKS, ids=lambda check: check.name)
def test_without_systemd_or_units(tmp_path: Path, check: Check) -> None:
    expect_skipped(check, make_machine(tmp_path), "systemd is not running")
    systemd = Systemd(tmp_path)
    systemd.units = {units.REDIS: dict(RUNNING), units.DISTRIBUTION: dict(RUNNING)}
    expect_skipped(check, systemd.machine, "no units of Sluice")


def test_hanging_systemctl_is_called_once(tmp_path: Path) -> None:
    calls = []

    def hang(command: Sequence[str], timeout_s: float) -> Output:
        calls.append(command)
        return Output(TIMED_OUT, "no answer within 5 s")

    (tmp_path / "run/systemd/system").mkdir(parents=True)
    one = make_machine(tmp_path, run=hang)
    for check in units.CHECKS:
        expect_skipped(check, one, "no answer within")
    assert len(calls) == 1


def test_healthy_installation(systemd: Systemd) -> None:
    systemd.units["redis-worker@2.service"] = dict(RUNNING)
    state = findings_of(units.state, systemd.machine)
    assert [finding.status for finding in state] == [Health.OK] * 5
    assert state[-1].seen == "redis-worker@2.service is active (running), enabled"
    scores = findings_of(units.security, systemd.machine)
    assert [finding.status for finding in scores] == [Health.OK] * 4  # sockets have no score
    for check in (units.restarts, units.drop_ins, units.collision):
        expect(check, systemd.machine, Health.OK)


@pytest.mark.parametrize(
    ("state", "status", "text"),
    [
        ({**FAILED, "ExecMainStatus": "78"}, Health.FAIL, INVALID_SETTING),
        (FAILED, Health.FAIL, f"systemctl reset-failed {units.ECHO_WORKER}"),
        ({**FAILED, "Result": "watchdog"}, Health.FAIL, "event loop was blocked"),
        ({**FAILED, "Result": "oom-kill"}, Health.FAIL, "memory was full"),
        ({**FAILED, "Result": "start-limit-hit"}, Health.FAIL, "stopped restarting it"),
        ({**FAILED, "Result": "something-new"}, Health.FAIL, "result something-new"),
        (STOPPED, Health.FAIL, ""),
        (RESTARTING, Health.FAIL, ""),
        (DISABLED, Health.WARN, f"systemctl enable {units.ECHO_WORKER}"),
        ({"NeedDaemonReload": "yes"}, Health.WARN, "daemon-reload"),
        ({"LoadState": "bad-setting"}, Health.FAIL, ""),
        ({"LoadState": "not-found"}, Health.FAIL, ""),
    ],
)
def test_state_of_a_unit(
    systemd: Systemd, state: dict[str, str], status: Health, text: str
) -> None:
    assert systemd.status_in(units.ECHO_WORKER, state) is status
    found = systemd.finding(units.ECHO_WORKER)
    assert text in f"{found.seen} {found.cause} {found.fix}"


def test_units_that_need_not_run(systemd: Systemd) -> None:
    unused = {**STOPPED, **DISABLED}
    assert systemd.status_in(units.GATEWAY, unused) is Health.NOTE  # the socket starts it
    assert systemd.status_in(units.GATEWAY, DISABLED) is Health.OK
    systemd.units[units.GATEWAY_SOCKET]["ActiveState"] = "inactive"
    assert systemd.status_in(units.GATEWAY, unused) is Health.FAIL
    assert systemd.status_in(units.ECHO_WORKER, unused) is Health.FAIL
    systemd.units["redis-worker@ai.service"] = dict(RUNNING)
    assert systemd.status_in(units.ECHO_WORKER, unused) is Health.NOTE  # another worker runs
    del systemd.units[units.REDIS]
    assert systemd.finding(units.REDIS).status is Health.NOTE  # Sluice does not manage it


def test_model_unit_is_checked_if_installed(systemd: Systemd) -> None:
    found = findings_of(units.state, systemd.machine)
    assert all(units.MODEL not in finding.seen for finding in found)
    write(systemd.root, f"/etc/systemd/system/{units.MODEL}")
    assert systemd.status_in(units.MODEL, FAILED) is Health.FAIL
    write(systemd.root, "/etc/systemd/system/redis-gateway.service")
    assert systemd.machine.remedies.start_worker == "sudo systemctl start redis-worker@ai"


def test_restarts(systemd: Systemd) -> None:
    systemd.units[units.GATEWAY]["NRestarts"] = "1"
    expect(units.restarts, systemd.machine, Health.NOTE)
    systemd.units[units.ECHO_WORKER]["NRestarts"] = "41"
    expect(units.restarts, systemd.machine, Health.WARN, fix=f"-u {units.ECHO_WORKER}")


def test_weakened_sandbox(systemd: Systemd) -> None:
    systemd.scores = {units.GATEWAY: 0.9, units.ECHO_WORKER: 1.5, units.REDIS: 9.2}
    found = findings_of(units.security, systemd.machine)
    good = [finding.seen.split()[0] for finding in found if finding.status is Health.OK]
    bad = [finding.seen.split()[0] for finding in found if finding.status is Health.WARN]
    assert (good, sorted(bad)) == ([units.ECHO_WORKER], sorted([units.GATEWAY, units.REDIS]))


def test_drop_ins(systemd: Systemd) -> None:
    file = "/etc/systemd/system/redis-gateway.service.d/50-mine.conf"
    systemd.units[units.GATEWAY]["DropInPaths"] = file
    assert expect(units.drop_ins, systemd.machine, Health.NOTE).seen == file


def test_collision_with_the_distribution(systemd: Systemd) -> None:
    stopped = {**RUNNING, "ActiveState": "inactive"}
    systemd.units[units.DISTRIBUTION] = {**stopped, "UnitFileState": "disabled"}
    expect(units.collision, systemd.machine, Health.OK)
    systemd.units[units.DISTRIBUTION] = stopped
    expect(units.collision, systemd.machine, Health.WARN)
    systemd.units[units.DISTRIBUTION] = dict(RUNNING)
    expect(units.collision, systemd.machine, Health.WARN, fix="disable --now redis-server")
    systemd.units[units.REDIS]["Id"] = units.DISTRIBUTION
    expect(units.collision, systemd.machine, Health.FAIL)


@pytest.mark.parametrize(
    ("listens", "called"),
    [
        ("127.0.0.1:8080 (Stream)", "127.0.0.1:8080"),
        ("0.0.0.0:9000 (Stream)", "127.0.0.1:9000"),
        ("[::]:9000 (Stream)", "127.0.0.1:9000"),
        ("192.168.1.5:80 (Stream)", "192.168.1.5:80"),
        ("/run/x.sock (Stream)", None),
        ("", None),
    ],
)
def test_listen_address(systemd: Systemd, listens: str, called: str | None) -> None:
    systemd.units[units.GATEWAY_SOCKET]["Listen"] = listens
    assert units.listen_address(systemd.machine) == called


def test_credentials(tmp_path: Path) -> None:
    expect_skipped(secrets.credentials, make_machine(tmp_path))
    file = write(tmp_path, "/etc/sluice/credentials/admin.redis_url", "unix://a:b@/s\n", 0o600)
    file.parent.chmod(0o700)
    owned = make_machine(tmp_path, owner_uid=os.getuid())
    expect(secrets.credentials, owned, Health.OK)
    expect(secrets.credentials, make_machine(tmp_path, owner_uid=12345), Health.FAIL)
    file.chmod(0o640)
    found = expect(secrets.credentials, owned, Health.FAIL, fix="chmod 600")
    assert "admin.redis_url has mode 640" in found.seen


def test_secrets_in_settings_files(tmp_path: Path) -> None:
    expect_skipped(secrets.environment, make_machine(tmp_path))
    write(tmp_path, "/etc/sluice/gateway.env", "# PASSWORD=x\nPORT=8080\nREDIS_URL=unix:///s\n")
    expect(secrets.environment, make_machine(tmp_path), Health.OK)
    write(tmp_path, "/etc/sluice/worker.env", "REDIS_URL='redis://w:hunter2@h'\nMODEL_API_KEY=k\n")
    found = expect(secrets.environment, make_machine(tmp_path), Health.WARN)
    assert "REDIS_URL in /etc/sluice/worker.env" in found.seen
    assert "MODEL_API_KEY" in found.seen
    assert "hunter2" not in str(found)
