"""Our systemd units, as `systemctl show` tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ops.doctor.box import MODEL_UNIT, Box
from ops.doctor.finding import Unable

REDIS = "redis.service"
GATEWAY_SOCKET = "redis-gateway.socket"
GATEWAY = "redis-gateway.service"
ECHO_WORKER = "redis-echo-worker.service"
WORKERS = "redis-worker@*.service"
OURS = (REDIS, GATEWAY_SOCKET, GATEWAY, ECHO_WORKER)
#: Only with `install.sh --with-model`.
MODEL = "sluice-model.service"
#: What Debian and Ubuntu call theirs; its alias is the name of ours.
DISTRIBUTION = "redis-server.service"
#: Addresses that mean all of them.
_EVERYWHERE = ("", "0.0.0.0", "[::]", "*")
_ASKED = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "Result",
    "NRestarts",
    "ExecMainStatus",
    "DropInPaths",
    "FragmentPath",
    "NeedDaemonReload",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit, asked for by a name; `id` is what systemd says the name means."""

    name: str
    values: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    @property
    def id(self) -> str:
        """Its own name, which differs where we asked for an alias."""
        return self["Id"] or self.name

    @property
    def installed(self) -> bool:
        """Whether systemd knows it."""
        return self["LoadState"] not in ("not-found", "")

    @property
    def active(self) -> str:
        """`active`, `inactive`, `failed`, `activating` …"""
        return self["ActiveState"]

    @property
    def restarts(self) -> int:
        """How often systemd started it again by itself."""
        return int(self["NRestarts"]) if self["NRestarts"].isdecimal() else 0

    @property
    def drop_ins(self) -> list[str]:
        """Files that change it."""
        return self["DropInPaths"].split()


def ask(box: Box, *names: str) -> list[Unit]:
    """Ask systemd about units, all at once."""
    properties = [part for name in _ASKED for part in ("-p", name)]
    text = box.systemctl("show", *properties, "--", *names)
    blocks = [_parse(block) for block in text.strip().split("\n\n")]
    if len(blocks) != len(names) or not all(blocks):
        raise Unable(f"systemctl show: {text.strip()[:200] or 'no answer'}")
    return [Unit(name, values) for name, values in zip(names, blocks)]


def ours(box: Box) -> list[Unit]:
    """Our units with every instance of the template; raises Unable where none is installed."""
    listed = box.systemctl("list-units", "--all", "--no-legend", "--", WORKERS)
    instances = [words[0].lstrip("●*") for line in listed.splitlines() if (words := line.split())]
    instances = [name for name in instances if name.startswith("redis-worker@")]
    model = (MODEL,) if box.path(MODEL_UNIT).exists() else ()
    found = ask(box, *OURS, *model, *instances)
    # A redis.service may be there without us.
    if not any(unit.installed for unit in found if unit.name != REDIS):
        raise Unable("no unit of Sluice is installed")
    return found


def services(box: Box) -> Iterator[Unit]:
    """Those that are processes."""
    yield from (unit for unit in ours(box) if unit.installed and unit.name.endswith(".service"))


def listening_at(box: Box) -> str | None:
    """Where the gateway's socket unit listens, as one would call it from here."""
    try:
        text = box.systemctl("show", "-p", "Listen", "--value", "--", GATEWAY_SOCKET)
    except Unable:
        return None
    for line in text.splitlines():
        address, _, kind = line.strip().partition(" ")
        host, colon, port = address.rpartition(":")
        if kind == "(Stream)" and colon and port.isdecimal():
            return f"127.0.0.1:{port}" if host in _EVERYWHERE else address
    return None


def _parse(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
