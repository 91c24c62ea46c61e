"""Checks of systemd units with a fake systemctl."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ops.doctor.checks import access as secrets
from ops.doctor.checks import systemd as unit_checks
from ops.doctor.checks import systemd as units
from ops.doctor.finding import Check, CheckSkipped, Health
from ops.doctor.machine import TIMED_OUT, Machine, Output
from tests.ops.doctor.machines import finding_of, findings_of, make_machine, status_of, write

RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "Result": "success",
    "NRestarts": "0",
    "NeedDaemonReload": "no",
}
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

    def state(self, name: str, **values: str) -> tuple[Health, str]:
        """The status and texts of the finding for a unit in the given state."""
        self.units[name] = {**RUNNING, **values}
        [finding] = [
            finding
            for finding in findings_of(unit_checks.state, self.machine)
            if finding.seen.startswith(name)
        ]
        return finding.status, f"{finding.seen} {finding.cause} {finding.fix}"


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


@pytest.mark.parametrize("check", unit_checks.CHECKS, ids=lambda check: check.name)
def test_without_systemd(tmp_path: Path, check: Check) -> None:
    with pytest.raises(CheckSkipped, match="systemd is not running"):
        check.run(make_machine(tmp_path))


@pytest.mark.parametrize("check", unit_checks.CHECKS, ids=lambda check: check.name)
def test_without_sluice_units(systemd: Systemd, check: Check) -> None:
    systemd.units = {units.REDIS: dict(RUNNING), units.DISTRIBUTION: dict(RUNNING)}
    with pytest.raises(CheckSkipped, match="no units of Sluice"):
        check.run(systemd.machine)


def test_hanging_systemctl_is_called_once(tmp_path: Path) -> None:
    calls = []

    def hang(command: Sequence[str], timeout_s: float) -> Output:
        calls.append(command)
        return Output(TIMED_OUT, "no answer within 5 s")

    (tmp_path / "run/systemd/system").mkdir(parents=True)
    one = make_machine(tmp_path, run=hang)
    for check in unit_checks.CHECKS:
        with pytest.raises(CheckSkipped, match="no answer within"):
            check.run(one)
    assert len(calls) == 1


def test_healthy_installation(systemd: Systemd) -> None:
    systemd.units["redis-worker@2.service"] = dict(RUNNING)
    state = findings_of(unit_checks.state, systemd.machine)
    assert [finding.status for finding in state] == [Health.OK] * 5
    assert state[-1].seen == "redis-worker@2.service is active (running), enabled"
    scores = findings_of(unit_checks.security, systemd.machine)
    assert [finding.status for finding in scores] == [Health.OK] * 4  # sockets have no score
    for check in (unit_checks.restarts, unit_checks.drop_ins, unit_checks.collision):
        assert status_of(check, systemd.machine) is Health.OK


def test_failed_unit(systemd: Systemd) -> None:
    name = units.ECHO_WORKER
    failed = {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
    status, texts = systemd.state(name, **failed, ExecMainStatus="78")
    assert status is Health.FAIL
    assert "exited with code 78: a setting is invalid" in texts
    assert f"systemctl reset-failed {name}" in texts
    for result, meaning in {
        "watchdog": "event loop was blocked",
        "oom-kill": "memory was full",
        "start-limit-hit": "stopped restarting it",
        "something-new": "result something-new",
    }.items():
        status, texts = systemd.state(name, **{**failed, "Result": result})
        assert status is Health.FAIL
        assert meaning in texts


def test_other_unit_states(systemd: Systemd) -> None:
    name = units.ECHO_WORKER
    stopped = {"ActiveState": "inactive", "SubState": "dead"}
    assert systemd.state(name, **stopped)[0] is Health.FAIL
    restarting = {"ActiveState": "activating", "SubState": "auto-restart", "Result": "signal"}
    assert systemd.state(name, **restarting)[0] is Health.FAIL
    status, texts = systemd.state(name, UnitFileState="disabled")
    assert status is Health.WARN
    assert f"systemctl enable {name}" in texts
    status, texts = systemd.state(name, NeedDaemonReload="yes")
    assert status is Health.WARN
    assert "daemon-reload" in texts
    assert systemd.state(name, LoadState="bad-setting")[0] is Health.FAIL
    assert systemd.state(name, LoadState="not-found")[0] is Health.FAIL


def test_socket_activated_gateway(systemd: Systemd) -> None:
    stopped = {"ActiveState": "inactive", "SubState": "dead", "UnitFileState": "disabled"}
    assert systemd.state(units.GATEWAY, **stopped)[0] is Health.NOTE
    assert systemd.state(units.GATEWAY, UnitFileState="disabled")[0] is Health.OK
    systemd.units[units.GATEWAY_SOCKET]["ActiveState"] = "inactive"
    assert systemd.state(units.GATEWAY, **stopped)[0] is Health.FAIL


def test_redis_not_managed_by_sluice(systemd: Systemd) -> None:
    del systemd.units[units.REDIS]
    [finding] = [
        finding
        for finding in findings_of(unit_checks.state, systemd.machine)
        if finding.seen.startswith("redis.service")
    ]
    assert finding.status is Health.NOTE


def test_restarts(systemd: Systemd) -> None:
    systemd.units[units.GATEWAY]["NRestarts"] = "1"
    assert status_of(unit_checks.restarts, systemd.machine) is Health.NOTE
    systemd.units[units.ECHO_WORKER]["NRestarts"] = "41"
    found = finding_of(unit_checks.restarts, systemd.machine)
    assert found.status is Health.WARN
    assert f"-u {units.ECHO_WORKER}" in found.fix


def test_weakened_sandbox(systemd: Systemd) -> None:
    systemd.scores = {units.GATEWAY: 0.9, units.ECHO_WORKER: 1.5, units.REDIS: 9.2}
    status = {
        finding.seen.split()[0]: finding.status
        for finding in findings_of(unit_checks.security, systemd.machine)
    }
    assert status == {
        units.GATEWAY: Health.WARN,
        units.ECHO_WORKER: Health.OK,
        units.REDIS: Health.WARN,
    }


def test_drop_ins(systemd: Systemd) -> None:
    file = "/etc/systemd/system/redis-gateway.service.d/50-mine.conf"
    systemd.units[units.GATEWAY]["DropInPaths"] = file
    found = finding_of(unit_checks.drop_ins, systemd.machine)
    assert (found.status, found.seen) == (Health.NOTE, file)


def test_collision_with_the_distribution(systemd: Systemd) -> None:
    stopped = {**RUNNING, "ActiveState": "inactive"}
    systemd.units[units.DISTRIBUTION] = {**stopped, "UnitFileState": "disabled"}
    assert status_of(unit_checks.collision, systemd.machine) is Health.OK
    systemd.units[units.DISTRIBUTION] = stopped
    assert status_of(unit_checks.collision, systemd.machine) is Health.WARN
    systemd.units[units.DISTRIBUTION] = dict(RUNNING)
    found = finding_of(unit_checks.collision, systemd.machine)
    assert found.status is Health.WARN
    assert "disable --now redis-server" in found.fix
    systemd.units[units.REDIS]["Id"] = units.DISTRIBUTION
    assert status_of(unit_checks.collision, systemd.machine) is Health.FAIL


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
    with pytest.raises(CheckSkipped):
        secrets.credentials.run(make_machine(tmp_path))
    file = write(tmp_path, "/etc/sluice/credentials/admin.redis_url", "unix://a:b@/s\n", 0o600)
    file.parent.chmod(0o700)
    owned = make_machine(tmp_path, owner_uid=os.getuid())
    assert status_of(secrets.credentials, owned) is Health.OK
    assert status_of(secrets.credentials, make_machine(tmp_path, owner_uid=12345)) is Health.FAIL
    file.chmod(0o640)
    found = finding_of(secrets.credentials, owned)
    assert found.status is Health.FAIL
    assert "admin.redis_url has mode 640" in found.seen
    assert "chmod 600" in found.fix


def test_secrets_in_settings_files(tmp_path: Path) -> None:
    with pytest.raises(CheckSkipped):
        secrets.environment.run(make_machine(tmp_path))
    write(tmp_path, "/etc/sluice/gateway.env", "# PASSWORD=x\nPORT=8080\nREDIS_URL=unix:///s\n")
    assert status_of(secrets.environment, make_machine(tmp_path)) is Health.OK
    write(tmp_path, "/etc/sluice/worker.env", "REDIS_URL='redis://w:hunter2@h'\nMODEL_API_KEY=k\n")
    found = finding_of(secrets.environment, make_machine(tmp_path))
    assert found.status is Health.WARN
    assert "REDIS_URL in /etc/sluice/worker.env" in found.seen
    assert "MODEL_API_KEY" in found.seen
    assert "hunter2" not in str(found)
