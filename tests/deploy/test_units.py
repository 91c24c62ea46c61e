"""The units: systemd understands every line, the sandbox is tight, and they fit each other."""

from __future__ import annotations

import argparse
import re
import shutil
import string
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from common.errors import EXIT_CONFIG
from common.settings.base import CommonSettings
from common.settings.gateway import GatewaySettings
from common.settings.worker import WorkerSettings
from deploy.installer.layout import Layout
from gateway import main as gateway_main
from ops.model import command
from tests.support.backends import missing

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
REDIS, GATEWAY, ECHO, WORKER, MODEL = SERVICES = (
    "redis.service",
    "redis-gateway.service",
    "redis-echo-worker.service",
    "redis-worker@.service",
    "sluice-model.service",
)
OURS = (GATEWAY, ECHO, WORKER)
SOCKET, TARGET = "redis-gateway.socket", "sluice.target"
CLOSED = "redis-gateway-closed.target"
#: What units refer to and every systemd has.
ELSEWHERE = ("sysinit", "basic", "shutdown", "multi-user", "sockets", "local-fs")
#: Directives that came after systemd 249, which JetPack 6 has.
TOO_NEW = re.compile(
    r"^(RestrictFileSystems|LoadCredentialEncrypted|SetCredentialEncrypted|ImportCredential"
    r"|ExtensionDirectories|RestartSteps|RestartMaxDelaySec|OpenFile|FileDescriptorStorePreserve"
    r"|MemoryPressureWatch|MemoryZSwapMax|StartupMemory\w+|CoredumpReceive|NFTSet|RestartMode"
    r"|ProtectHostname=private|PrivateUsers=(full|identity)|PrivateTmp=disconnected|PrivatePIDs"
    r"|SurviveFinalKillSignal|DelegateSubgroup|PollLimit\w+|ExitType|Type=notify-reload"
    r"|BindLogSockets|ConditionControlGroup\w*|RootEphemeral|SystemCallLog=.*:)",
    re.MULTILINE,
)

Unit = dict[str, list[str]]


def read(name: str) -> Unit:
    """A unit's directives; one that is given twice has two values."""
    directives: Unit = defaultdict(list)
    for line in (UNITS / name).read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            directive, _, value = line.partition("=")
            directives[directive].append(value)
    return directives


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "min": 60}[unit]


def analyze(*words: str) -> str:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not installed")
    finished = subprocess.run(
        ["systemd-analyze", "--no-pager", *words], capture_output=True, text=True, timeout=60
    )
    said = finished.stdout + finished.stderr
    assert finished.returncode == 0, said
    return said


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A root directory in which everything is that the units name."""
    systemd = tmp_path / "etc/systemd/system"
    shutil.copytree(UNITS, systemd)
    for target in ELSEWHERE:
        (systemd / f"{target}.target").write_text("[Unit]\nDescription=stands for the real one\n")
    for name in SERVICES:
        program = tmp_path / read(name)["ExecStart"][0].split()[0].lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return tmp_path


def test_systemd_understands_every_line(box: Path) -> None:
    instance = WORKER.replace("@", "@gpu")
    units = (REDIS, SOCKET, GATEWAY, ECHO, instance, MODEL, TARGET, CLOSED)
    assert analyze(f"--root={box}", "verify", *units) == ""


def test_a_line_that_systemd_does_not_understand_would_be_noticed(box: Path) -> None:
    with (box / "etc/systemd/system" / REDIS).open("a") as unit:
        unit.write("[Service]\nNoSuchDirective=yes\n")
    assert "NoSuchDirective" in analyze(f"--root={box}", "verify", REDIS)


@pytest.mark.parametrize(
    ("name", "most"), [(REDIS, 1.5), (GATEWAY, 0.5), (ECHO, 0.5), (WORKER, 1.5), (MODEL, 1.0)]
)
def test_the_sandbox_is_tight(name: str, most: float) -> None:
    said = analyze("security", "--offline=true", str(UNITS / name))
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= most, said


@pytest.mark.parametrize("name", [*SERVICES, SOCKET, TARGET, CLOSED])
def test_nothing_is_newer_than_the_oldest_systemd_we_run_on(name: str) -> None:
    assert TOO_NEW.findall((UNITS / name).read_text()) == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_supervised_bounded_and_shut_in(name: str) -> None:
    unit = read(name)
    wanted = {
        "Type": "notify", "NotifyAccess": "main", "Restart": "always", "KillMode": "mixed",
        "PartOf": TARGET, "UMask": "0077", "LimitCORE": "0",
        "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict",
        "SystemCallErrorNumber": "EPERM", "MemoryDenyWriteExecute": "yes",
    }  # fmt: skip
    assert {directive: unit[directive] for directive in wanted} == {
        directive: [value] for directive, value in wanted.items()
    }
    for limit in ("MemoryHigh", "MemoryMax", "TasksMax", "CPUWeight", "IOWeight", "LimitNOFILE"):
        assert len(unit[limit]) == 1, limit
    assert seconds(unit["RestartSec"][0]) >= 1
    user = unit["User"][0]
    assert user in ("sluice-redis", "sluice-gateway", "sluice-worker", "sluice-model")
    # Whoever is in the group may speak to Redis.
    assert unit["Group"] == ([user] if name == MODEL else ["sluice"])
    assert "multi-user.target" in unit["WantedBy"][0]


@pytest.mark.parametrize("name", OURS)
def test_ours_outlive_redis_and_have_secrets_from_systemd(name: str) -> None:
    unit = read(name)
    assert "redis.service" in unit["After"][0]
    assert unit["Wants"] == ["redis.service"]
    assert "redis.service" not in " ".join(unit["Requires"] + unit["BindsTo"])
    assert unit["RestartPreventExitStatus"] == [str(EXIT_CONFIG)]
    role = "gateway" if name == GATEWAY else "worker"
    assert unit["LoadCredential"] == [f"redis_url:/etc/sluice/credentials/{role}.redis_url"]
    assert unit["EnvironmentFile"][0] == f"-/etc/sluice/{role}.env"
    assert unit["User"] == [f"sluice-{role}"]
    assert seconds(unit["WatchdogSec"][0]) >= 30


@pytest.mark.parametrize("name", SERVICES)
def test_no_outage_is_long_enough_to_leave_a_unit_failed_for_good(name: str) -> None:
    assert read(name)["StartLimitIntervalSec"] == ["0"]


def test_a_gateway_with_wrong_settings_is_not_started_by_each_connection() -> None:
    """The socket would see to that: so it is closed."""
    assert read(GATEWAY)["OnFailure"] == [CLOSED]
    assert read(CLOSED)["Conflicts"] == [SOCKET]
    assert SOCKET in read(GATEWAY)["Requires"]  # and opened again with it


def test_a_stop_is_waited_for_as_long_as_it_may_take() -> None:
    default = WorkerSettings.model_fields["shutdown_grace_s"].default
    for name in (ECHO, WORKER):
        assert seconds(read(name)["TimeoutStopSec"][0]) >= default + 15
        assert seconds(read(name)["WatchdogSec"][0]) * 1000 > (
            WorkerSettings.model_fields["lease_ms"].default
        )
    assert seconds(read(GATEWAY)["TimeoutStopSec"][0]) >= 2 * gateway_main.GRACEFUL_S


def test_when_memory_runs_out_redis_goes_last() -> None:
    scores = [int(read(name)["OOMScoreAdjust"][0]) for name in SERVICES]
    assert scores == sorted(scores)
    assert scores[-1] == 800
    assert scores[0] == -900
    assert scores[1] <= 0 < scores[2]


def test_the_gateway_has_no_network_but_the_socket_it_is_given() -> None:
    unit, socket = read(GATEWAY), read(SOCKET)
    assert socket["ListenStream"] == ["127.0.0.1:8080"]
    assert int(socket["Backlog"][0]) >= 1024
    assert socket["PartOf"] == [TARGET]
    assert unit["PrivateNetwork"] == ["yes"]
    assert unit["RestrictAddressFamilies"] == ["AF_UNIX"]
    assert unit["Requires"] == unit["Sockets"] == unit["Also"] == [SOCKET]
    assert SOCKET in unit["After"][0]
    most = GatewaySettings.model_fields["max_connections"].default
    assert int(unit["LimitNOFILE"][0]) > most


def test_redis_listens_for_the_group_only() -> None:
    unit = read(REDIS)
    assert unit["RestrictAddressFamilies"] == ["AF_UNIX"]
    assert (unit["RuntimeDirectory"], unit["RuntimeDirectoryMode"]) == (["sluice"], ["0750"])
    assert (unit["StateDirectory"], unit["StateDirectoryMode"]) == (["sluice/redis"], ["0700"])
    assert unit["ExecStart"] == ["/usr/bin/redis-server /etc/sluice/redis.conf"]


def test_workers_see_how_the_box_is_and_reach_no_further_than_it() -> None:
    for name in (ECHO, WORKER):
        assert "ProcSubset" not in read(name)
    assert read(GATEWAY)["ProcSubset"] == ["pid"]
    assert read(ECHO)["PrivateNetwork"] == ["yes"]
    assert (read(WORKER)["IPAddressDeny"], read(WORKER)["IPAddressAllow"]) == (
        ["any"],
        ["localhost"],
    )


def test_webhooks_that_were_given_up_can_be_written_down() -> None:
    """Under ProtectSystem=strict only systemd's own directories are writable."""
    unit = read(WORKER)
    variables = dict(each.split("=", 1) for each in unit["Environment"])
    path = Path(variables["WORKFLOW_WEBHOOK_DLQ_PATH"])
    assert path.parent == Layout().logs == Path("/var/log") / unit["LogsDirectory"][0]
    default = WorkerSettings.model_fields["workflow_webhook_dlq_path"].default
    assert path.name == Path(default).name
    assert unit["LogsDirectoryMode"] == ["0750"]
    assert not any(str(path).startswith(each.lstrip("-")) for each in unit["InaccessiblePaths"])


def test_the_drop_in_for_webhooks_is_understood(box: Path) -> None:
    """As docs/operations.md has it."""
    text = (ROOT / "docs" / "operations.md").read_text()
    drop_in = re.search(
        r"```ini\n(# systemctl edit redis-worker@\.service\n.*?)```", text, re.DOTALL
    )
    assert drop_in is not None
    directory = box / "etc/systemd/system" / f"{WORKER}.d"
    directory.mkdir()
    (directory / "override.conf").write_text(drop_in[1])
    assert analyze(f"--root={box}", "verify", WORKER.replace("@", "@ai")) == ""
    assert "LoadCredential=workflow_webhook_secret:" in drop_in[1]
    assert "workflow_webhook_secret" in WorkerSettings.model_fields


@pytest.mark.parametrize(
    ("name", "settings"), [("gateway", GatewaySettings), ("worker", WorkerSettings)]
)
def test_env_files_name_settings_that_there_are(name: str, settings: type[CommonSettings]) -> None:
    template = (ROOT / "deploy" / f"{name}.env.template").read_text()
    named = re.findall(r"^#([A-Z_]+)=", template, re.MULTILINE)
    assert len(named) > 5
    assert {each.lower() for each in named} <= set(settings.model_fields)


def test_the_model_server_is_reached_from_this_box_only_and_reaches_nobody() -> None:
    unit = read(MODEL)
    assert "--host 127.0.0.1" in unit["ExecStart"][0]
    assert (unit["IPAddressDeny"], unit["IPAddressAllow"]) == (["any"], ["localhost"])
    assert "/run/sluice" in unit["InaccessiblePaths"][0], "it has no business with Redis"
    assert unit["RestartPreventExitStatus"] == [str(EXIT_CONFIG)]
    assert unit["ConditionPathExists"] == ["/opt/sluice-model/engine"]


def test_the_model_server_knows_every_option_that_its_unit_gives_it() -> None:
    given = dict(re.findall(r"--(\w+) (\S+)", read(MODEL)["ExecStart"][0]))
    variables = dict(each.split("=", 1) for each in read(MODEL)["Environment"])
    words = [
        f"--{option}={string.Template(value).substitute(variables)}"
        for option, value in given.items()
    ]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    found = parser.parse_args(["serve", *words])
    assert (found.port, found.gguf, found.slots, found.threads) == (8090, "", 2, 0)
    template = (ROOT / "deploy" / "model.env.template").read_text()
    assert set(re.findall(r"^#(SERVE_\w+)=", template, re.MULTILINE)) == {
        name for name in variables if name.startswith("SERVE_")
    }


def test_each_worker_keeps_a_name_of_its_own() -> None:
    assert "CONSUMER=%H-%i" in read(WORKER)["Environment"]
    assert "CONSUMER=%H-%p" in read(ECHO)["Environment"]
    assert read(WORKER)["EnvironmentFile"] == [
        "-/etc/sluice/worker.env",
        "-/etc/sluice/worker-%i.env",
    ]


@pytest.mark.parametrize("name", OURS)
def test_what_the_units_run_is_there(name: str) -> None:
    python, *_, script = read(name)["ExecStart"][0].split()
    home = Path(script).parent
    assert python == str(home / "venv/bin/python")
    assert (ROOT / "deploy" / "opt" / Path(script).name).is_file()
