"""The unit files: systemd accepts every line, the sandbox is tight, and the units fit together."""

from __future__ import annotations

import argparse
import re
import shutil
import string
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from deploy.installer.layout import Layout
from sluice.common.errors import EXIT_CONFIG
from sluice.common.settings.base import CommonSettings
from sluice.common.settings.gateway import GatewaySettings
from sluice.common.settings.worker import WorkerSettings
from sluice.gateway import main as gateway_main
from sluice.ops.model import command
from tests.support.servers import missing

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
REDIS, GATEWAY, ECHO, WORKER, MODEL = SERVICES = (
    "redis.service",
    "redis-gateway.service",
    "redis-echo-worker.service",
    "redis-worker@.service",
    "sluice-model.service",
)
SLUICE_SERVICES = (GATEWAY, ECHO, WORKER)
SOCKET, TARGET = "redis-gateway.socket", "sluice.target"
CLOSED = "redis-gateway-closed.target"
#: Targets that every systemd has.
STANDARD_TARGETS = ("sysinit", "basic", "shutdown", "multi-user", "sockets", "local-fs")
#: Directives newer than systemd 249, the version of JetPack 6.
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
    """Directives of a unit; repeated ones have several values."""
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
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    return output


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with every file that the units refer to."""
    systemd = tmp_path / "etc/systemd/system"
    shutil.copytree(UNITS, systemd)
    for target in STANDARD_TARGETS:
        (systemd / f"{target}.target").write_text("[Unit]\nDescription=stands for the real one\n")
    for name in SERVICES:
        program = tmp_path / read(name)["ExecStart"][0].split()[0].lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return tmp_path


def test_systemd_accepts_every_line(root: Path) -> None:
    instance = WORKER.replace("@", "@gpu")
    units = (REDIS, SOCKET, GATEWAY, ECHO, instance, MODEL, TARGET, CLOSED)
    assert analyze(f"--root={root}", "verify", *units) == ""
    with (root / "etc/systemd/system" / REDIS).open("a") as unit:
        unit.write("[Service]\nNoSuchDirective=yes\n")
    assert "NoSuchDirective" in analyze(f"--root={root}", "verify", REDIS)


@pytest.mark.parametrize(
    ("name", "most"), [(REDIS, 1.5), (GATEWAY, 0.5), (ECHO, 0.5), (WORKER, 1.5), (MODEL, 1.0)]
)
def test_the_sandbox_is_tight(name: str, most: float) -> None:
    output = analyze("security", "--offline=true", str(UNITS / name))
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", output)
    assert exposure is not None, output
    assert float(exposure[1]) <= most, output


@pytest.mark.parametrize("name", [*SERVICES, SOCKET, TARGET, CLOSED])
def test_no_directive_needs_a_newer_systemd(name: str) -> None:
    assert TOO_NEW.findall((UNITS / name).read_text()) == []


#: Directives of every service.
OF_SERVICES = f"""
    Type=notify NotifyAccess=main Restart=always KillMode=mixed PartOf={TARGET} UMask=0077
    LimitCORE=0 StartLimitIntervalSec=0 NoNewPrivileges=yes CapabilityBoundingSet=
    ProtectSystem=strict SystemCallErrorNumber=EPERM MemoryDenyWriteExecute=yes
"""
#: Directives of single units. Members of the group sluice may connect to Redis.
OF_UNITS = {
    REDIS: """
        User=sluice-redis Group=sluice RestrictAddressFamilies=AF_UNIX
        RuntimeDirectory=sluice RuntimeDirectoryMode=0750
        StateDirectory=sluice/redis StateDirectoryMode=0700
    """,
    # Connections come from the socket. An invalid setting closes it, because it would start the
    # gateway for each connection.
    GATEWAY: f"""
        User=sluice-gateway Group=sluice PrivateNetwork=yes RestrictAddressFamilies=AF_UNIX
        Requires={SOCKET} Sockets={SOCKET} Also={SOCKET} OnFailure={CLOSED} ProcSubset=pid
    """,
    SOCKET: f"ListenStream=127.0.0.1:8080 PartOf={TARGET}",
    CLOSED: f"Conflicts={SOCKET}",
    ECHO: "User=sluice-worker Group=sluice PrivateNetwork=yes",
    WORKER: "User=sluice-worker Group=sluice IPAddressDeny=any IPAddressAllow=localhost",
    MODEL: f"""
        User=sluice-model Group=sluice-model IPAddressDeny=any IPAddressAllow=localhost
        RestartPreventExitStatus={EXIT_CONFIG} ConditionPathExists=/opt/sluice-model/engine
    """,
}


@pytest.mark.parametrize("name", OF_UNITS)
def test_units_are_supervised_and_sandboxed(name: str) -> None:
    words = [*(OF_SERVICES.split() if name in SERVICES else []), *OF_UNITS[name].split()]
    unit = read(name)
    for directive, _, value in (word.partition("=") for word in words):
        assert unit[directive] == [value], directive


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_limited_and_start_at_boot(name: str) -> None:
    unit = read(name)
    for limit in ("MemoryHigh", "MemoryMax", "TasksMax", "CPUWeight", "IOWeight", "LimitNOFILE"):
        assert len(unit[limit]) == 1, limit
    assert seconds(unit["RestartSec"][0]) >= 1
    assert "multi-user.target" in unit["WantedBy"][0]
    if name in (ECHO, WORKER):  # workers read the pressure of the host
        assert "ProcSubset" not in unit


@pytest.mark.parametrize("name", SLUICE_SERVICES)
def test_services_outlive_redis_and_use_credentials(name: str) -> None:
    unit = read(name)
    assert "redis.service" in unit["After"][0]
    assert unit["Wants"] == ["redis.service"]
    assert "redis.service" not in " ".join(unit["Requires"] + unit["BindsTo"])
    assert unit["RestartPreventExitStatus"] == [str(EXIT_CONFIG)]
    role = "gateway" if name == GATEWAY else "worker"
    assert unit["LoadCredential"] == [f"redis_url:/etc/sluice/credentials/{role}.redis_url"]
    assert unit["EnvironmentFile"][0] == f"-/etc/sluice/{role}.env"
    assert seconds(unit["WatchdogSec"][0]) >= 30
    python, *_, script = unit["ExecStart"][0].split()
    assert python == str(Path(script).parent / "venv/bin/python")
    assert (ROOT / "deploy" / "opt" / Path(script).name).is_file()


def test_stop_timeouts_are_longer_than_the_shutdown() -> None:
    default = WorkerSettings.model_fields["shutdown_grace_s"].default
    for name in (ECHO, WORKER):
        assert seconds(read(name)["TimeoutStopSec"][0]) >= default + 15
        assert seconds(read(name)["WatchdogSec"][0]) * 1000 > (
            WorkerSettings.model_fields["lease_ms"].default
        )
    assert seconds(read(GATEWAY)["TimeoutStopSec"][0]) >= 2 * gateway_main.GRACEFUL_S


def test_redis_is_configured_and_killed_last() -> None:
    assert read(REDIS)["ExecStart"] == ["/usr/bin/redis-server /etc/sluice/redis.conf"]
    scores = [int(read(name)["OOMScoreAdjust"][0]) for name in SERVICES]
    assert scores == sorted(scores)
    assert scores[-1] == 800
    assert scores[0] == -900
    assert scores[1] <= 0 < scores[2]


def test_the_socket_starts_before_the_gateway_and_queues_connections() -> None:
    assert SOCKET in read(GATEWAY)["After"][0]
    assert int(read(SOCKET)["Backlog"][0]) >= 1024
    most = GatewaySettings.model_fields["max_connections"].default
    assert int(read(GATEWAY)["LimitNOFILE"][0]) > most


def test_the_webhook_dead_letter_file_is_writable() -> None:
    """With ProtectSystem=strict only systemd's own directories are writable."""
    unit = read(WORKER)
    variables = dict(each.split("=", 1) for each in unit["Environment"])
    path = Path(variables["WORKFLOW_WEBHOOK_DLQ_PATH"])
    assert path.parent == Layout().logs == Path("/var/log") / unit["LogsDirectory"][0]
    default = WorkerSettings.model_fields["workflow_webhook_dlq_path"].default
    assert path.name == Path(default).name
    assert unit["LogsDirectoryMode"] == ["0750"]
    assert not any(str(path).startswith(each.lstrip("-")) for each in unit["InaccessiblePaths"])


def test_systemd_accepts_the_webhook_drop_in(root: Path) -> None:
    """The drop-in of docs/operations.md."""
    text = (ROOT / "docs" / "operations.md").read_text()
    drop_in = re.search(
        r"```ini\n(# systemctl edit redis-worker@\.service\n.*?)```", text, re.DOTALL
    )
    assert drop_in is not None
    directory = root / "etc/systemd/system" / f"{WORKER}.d"
    directory.mkdir()
    (directory / "override.conf").write_text(drop_in[1])
    assert analyze(f"--root={root}", "verify", WORKER.replace("@", "@ai")) == ""
    assert "LoadCredential=workflow_webhook_secret:" in drop_in[1]
    assert "workflow_webhook_secret" in WorkerSettings.model_fields


@pytest.mark.parametrize(
    ("name", "settings"), [("gateway", GatewaySettings), ("worker", WorkerSettings)]
)
def test_env_files_contain_existing_settings(name: str, settings: type[CommonSettings]) -> None:
    template = (ROOT / "deploy" / f"{name}.env.template").read_text()
    named = re.findall(r"^#([A-Z_]+)=", template, re.MULTILINE)
    assert len(named) > 5
    assert {each.lower() for each in named} <= set(settings.model_fields)


def test_the_model_server_accepts_the_options_of_its_unit() -> None:
    assert "/run/sluice" in read(MODEL)["InaccessiblePaths"][0], "it does not use Redis"
    given = dict(re.findall(r"--(\w+) (\S+)", read(MODEL)["ExecStart"][0]))
    assert given["host"] == "127.0.0.1"
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


def test_each_worker_has_a_stable_consumer_name() -> None:
    assert "CONSUMER=%H-%i" in read(WORKER)["Environment"]
    assert "CONSUMER=%H-%p" in read(ECHO)["Environment"]
    assert read(WORKER)["EnvironmentFile"] == [
        "-/etc/sluice/worker.env",
        "-/etc/sluice/worker-%i.env",
    ]
