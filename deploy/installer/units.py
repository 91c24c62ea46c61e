"""Unit files, their drop-ins, and the commands to systemd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.installer.acl import SELECTORS_SINCE
from deploy.installer.errors import Unsuitable
from deploy.installer.file_steps import WriteFile
from deploy.installer.host import Host
from deploy.installer.layout import (
    CHECKOUT,
    GATEWAY_UNIT,
    MODEL_UNIT,
    REDIS_UNIT,
    SOCKET_UNIT,
    WORKER_UNITS,
    enabled,
)
from deploy.installer.manifest import DEFAULT_LISTEN
from deploy.installer.redis_server import RedisServer
from sluice.common.process import host as network

SOURCES = CHECKOUT / "deploy" / "systemd"
_SUFFIXES = (".service", ".socket", ".target", ".timer", ".path", ".slice")
_FIX = "See `systemctl status {unit}` and `journalctl -u {unit} -n 50`."
DROP_IN = "50-install.conf"
#: Address of sluice-model.service.
MODEL_URL = "http://127.0.0.1:8090"
_HIDDEN = ("/home/", "/root/", "/tmp/", "/var/tmp/", "/run/user/")


def files(host: Host, with_model: bool) -> list[WriteFile]:
    return [
        WriteFile(host, host.layout.units / path.name, path.read_text(), concerns=(path.name,))
        for path in unit_sources()
        if with_model or path.name != MODEL_UNIT
    ]


def unit_sources(directory: Path = SOURCES) -> list[Path]:
    """Unit files in the checkout."""
    return sorted(path for path in directory.glob("*") if path.suffix in _SUFFIXES)


def listen_drop_in(host: Host, listen: str) -> tuple[Path, str | None]:
    """Drop-in with the listen address; None for the unit's default."""
    path = host.layout.units / f"{SOCKET_UNIT}.d" / DROP_IN
    if listen == DEFAULT_LISTEN:
        return path, None
    return path, f"# From `install.sh --listen`.\n[Socket]\nListenStream=\nListenStream={listen}\n"


def redis_drop_in(host: Host, server: RedisServer, port: int) -> tuple[Path, str | None]:
    """Drop-in for differences of the installed redis-server; None if there are none."""
    path = host.layout.units / f"{REDIS_UNIT}.d" / DROP_IN
    if host.is_live and str(server.path).startswith(_HIDDEN):
        raise Unsuitable(
            f"redis.service cannot access {server.path} (ProtectHome, PrivateTmp)",
            f"Copy it: install -m 755 {server.path} /usr/local/bin/{server.path.name}",
        )
    unit = SOURCES / REDIS_UNIT
    text = unit.read_text() if unit.is_file() else ""
    lines: list[str] = []
    match = re.search(r"^ExecStart=(\S+)(.*)$", text, re.MULTILINE)
    if match is not None and match[1] != str(server.path):
        lines += ["ExecStart=", f"ExecStart={server.path}{match[2]}"]
    if not server.notifies and re.search(r"^Type=notify", text, re.MULTILINE):
        lines += [
            "# This redis-server is built without libsystemd and cannot send READY=1.",
            "Type=exec",
        ]
    if port:
        lines += [
            "# --redis-port: on loopback only.",
            "PrivateNetwork=no",
            "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
            "IPAddressDeny=any",
            "IPAddressAllow=localhost",
        ]
    if not lines:
        return path, None
    return path, "\n".join(["# From `install.sh`.", "[Service]", *lines, ""])


def gateway_drop_in(host: Host, server: RedisServer) -> tuple[Path, str | None]:
    """Disables the image result consumer on a Redis without ACL selectors."""
    path = host.layout.units / f"{GATEWAY_UNIT}.d" / DROP_IN
    if server.is_at_least(SELECTORS_SINCE):
        return path, None
    lines = [
        "# From `install.sh`: before Redis 7, permission to read image results as a consumer group",
        "# would also permit taking jobs. Results of Sluice's own workers are recorded anyway.",
        "[Service]",
        "Environment=IMAGE_CONSUMER=false",
    ]
    return path, "\n".join([*lines, ""])


def model_drop_in(host: Host) -> tuple[Path, str]:
    """Address of the embedded model for workers; worker.env takes precedence."""
    path = host.layout.units / f"{WORKER_UNITS.replace('*', '')}.d" / DROP_IN
    lines = [
        "# From `install.sh --with-model`; /etc/sluice/worker.env takes precedence.",
        "[Unit]",
        f"After={MODEL_UNIT}",
        "[Service]",
        f"Environment=MODEL_URL={MODEL_URL}",
        "Environment=SLUICE_MODELS_DIR=/opt/sluice-model/models",
    ]
    return path, "\n".join([*lines, ""])


def checked_listen(text: str) -> str:
    """Validates `ADDR:PORT`; raises Unsuitable."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Unsuitable(
            f"--listen {text!r} is not an address and port",
            "Use for example 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080.",
        )
    return text


def is_loopback(listen: str) -> bool:
    """True if only this host can reach the address."""
    return network.is_loopback(listen.rpartition(":")[0].strip("[]"))


class Systemd:
    """Runs systemctl; below `--root` it does nothing."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def is_available(self) -> bool:
        return self._host.is_live

    def reload(self) -> None:
        self._systemctl("daemon-reload")

    def enable(self, units: Sequence[str]) -> None:
        self._systemctl("enable", *units)

    def start(self, units: Iterable[str]) -> None:
        """Starts units one at a time, so that an error names its unit."""
        for unit in units:
            self._systemctl("start", unit)

    def restart(self, units: Iterable[str]) -> None:
        """Restarts units in this order."""
        for unit in units:
            self._systemctl("restart", unit)

    def stop(self, units: Sequence[str]) -> None:
        """Stops those that run."""
        for unit in units:
            if self.is_active(unit):
                self._systemctl("stop", unit)

    def disable(self, units: Sequence[str]) -> None:
        """Disables those that are enabled."""
        for unit in units:
            if self.is_enabled(unit):
                self._systemctl("disable", unit)

    def is_active(self, unit: str) -> bool:
        if not self._host.is_live:
            return False
        return self._host.query(["systemctl", "is-active", unit]) in ("active", "reloading")

    def is_enabled(self, unit: str) -> bool:
        if not self._host.is_live:
            return False
        return self._host.query(["systemctl", "is-enabled", unit]) == "enabled"

    def forget_failures(self) -> None:
        """Clears failed units, which systemctl would list even after their removal."""
        for unit in dict.fromkeys((*enabled(True), *enabled(False), WORKER_UNITS)):
            if self._host.is_live:
                self._host.query(["systemctl", "reset-failed", unit])

    def workers(self) -> list[str]:
        """Running instances of the worker template."""
        if not self._host.is_live:
            return []
        command = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active"]
        listed = self._host.query([*command, WORKER_UNITS]).splitlines()
        return [line.split()[0] for line in listed if line.strip()]

    def instances(self) -> list[str]:
        """Running and enabled instances of the worker template."""
        prefix, suffix = WORKER_UNITS.split("*")
        enabled = {
            link.name
            for link in self._host.layout.units.glob(f"*.wants/{WORKER_UNITS}")
            if link.name != prefix + suffix
        }
        return sorted(enabled.union(self.workers()))

    def state_of(self, unit: str) -> str:
        """`active`, `failed`, `inactive` and so on."""
        return self._host.query(["systemctl", "is-active", unit]) or "unknown"

    def _systemctl(self, verb: str, *units: str) -> None:
        if self._host.is_live:
            unit = units[0] if len(units) == 1 else GATEWAY_UNIT
            self._host.run(["systemctl", verb, *units], _FIX.format(unit=unit))
