"""Checks of systemd units: state, restarts, sandbox, drop-ins and collisions."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.common.text import plural
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import COMMAND_S, MODEL_UNIT, Machine

REDIS = "redis.service"
GATEWAY_SOCKET = "redis-gateway.socket"
GATEWAY = "redis-gateway.service"
ECHO_WORKER = "redis-echo-worker.service"
WORKERS = "redis-worker@*.service"
UNITS = (REDIS, GATEWAY_SOCKET, GATEWAY, ECHO_WORKER)
#: Installed only with `install.sh --with-model`.
MODEL = "sluice-model.service"
#: The unit of Debian and Ubuntu; it has the alias redis.service, the name of Sluice's unit.
DISTRIBUTION = "redis-server.service"
_LOOPBACK = ipaddress.IPv4Address("127.0.0.1")
#: Wildcard addresses.
_ANY_ADDRESS = ("", "0.0.0.0", "[::]", "*")
_PROPERTIES = (
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
    "PrivateNetwork",
    "IPAddressDeny",
    "IPAddressAllow",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit. `name` is the requested name, `id` the primary name in systemd."""

    name: str
    values: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    @property
    def id(self) -> str:
        """The primary name; differs from `name` for an alias."""
        return self["Id"] or self.name

    @property
    def installed(self) -> bool:
        return self["LoadState"] not in ("not-found", "")

    @property
    def active(self) -> str:
        return self["ActiveState"]

    @property
    def reaches_loopback(self) -> bool:
        """True unless it has a private network, or may not connect to 127.0.0.1."""
        if self["PrivateNetwork"] == "yes":
            return False
        allowed = (ipaddress.ip_network(text, False) for text in self["IPAddressAllow"].split())
        return not self["IPAddressDeny"] or any(_LOOPBACK in network for network in allowed)

    @property
    def restarts(self) -> int:
        return int(self["NRestarts"]) if self["NRestarts"].isdecimal() else 0

    @property
    def drop_ins(self) -> list[str]:
        return self["DropInPaths"].split()


def query_units(machine: Machine, *names: str) -> list[Unit]:
    """Read the properties of units with one command."""
    properties = [part for name in _PROPERTIES for part in ("-p", name)]
    text = machine.systemctl("show", *properties, "--", *names)
    blocks = [_parse(block) for block in text.strip().split("\n\n")]
    if len(blocks) != len(names) or not all(blocks):
        raise CheckSkipped(f"systemctl show: {text.strip()[:200] or 'no answer'}")
    return [Unit(name, values) for name, values in zip(names, blocks)]


def sluice_units(machine: Machine) -> list[Unit]:
    """All units of Sluice with worker instances; skips the check if none is installed."""
    listed = machine.systemctl("list-units", "--all", "--no-legend", "--", WORKERS)
    instances = [words[0].lstrip("●*") for line in listed.splitlines() if (words := line.split())]
    instances = [name for name in instances if name.startswith("redis-worker@")]
    model = (MODEL,) if machine.path(MODEL_UNIT).exists() else ()
    found = query_units(machine, *UNITS, *model, *instances)
    # redis.service may belong to another installation.
    if not any(unit.installed for unit in found if unit.name != REDIS):
        raise CheckSkipped("no units of Sluice are installed")
    return found


def services(machine: Machine) -> Iterator[Unit]:
    yield from (
        unit for unit in sluice_units(machine) if unit.installed and unit.name.endswith(".service")
    )


def listen_address(machine: Machine) -> str | None:
    """The address of the gateway's socket unit, as reached from this machine."""
    try:
        text = machine.systemctl("show", "-p", "Listen", "--value", "--", GATEWAY_SOCKET)
    except CheckSkipped:
        return None
    for line in text.splitlines():
        address, _, kind = line.strip().partition(" ")
        host, colon, port = address.rpartition(":")
        if kind == "(Stream)" and colon and port.isdecimal():
            return f"127.0.0.1:{port}" if host in _ANY_ADDRESS else address
    return None


def _parse(block: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in block.splitlines() if "=" in line)


#: Maximum exposure scores of `systemd-analyze security`.
MAX_EXPOSURE = 1.5
GATEWAY_MAX_EXPOSURE = 0.5
#: Number of restarts without a warning.
HARMLESS_RESTARTS = 3
_SCORE = re.compile(r"Overall exposure level for .+?: ([\d.]+)")
#: Descriptions of systemd's service results.
_RESULTS = {
    "exit-code": "it exited with code {status}",
    "signal": "it was killed by signal {status}",
    "core-dump": "it crashed",
    "watchdog": "the watchdog timed out: its event loop was blocked",
    "timeout": "it did not start or stop in time",
    "oom-kill": "the kernel killed it because memory was full",
    "start-limit-hit": "it failed repeatedly, and systemd stopped restarting it",
    "resources": "systemd could not provide a resource it needs",
}
_CONFIG_ERROR = "78"
_ENABLED = ("enabled", "enabled-runtime", "static", "indirect", "alias", "generated", "linked")


@check(
    "units.state",
    "each unit is running and enabled at boot",
    "`journalctl -u UNIT -n 50`, `systemctl reset-failed UNIT && systemctl start UNIT`, "
    "`systemctl enable UNIT`",
)
def state(machine: Machine) -> list[Finding]:
    all_units = sluice_units(machine)
    return [_state_of(unit, all_units) for unit in all_units]


def _state_of(unit: Unit, all_units: list[Unit]) -> Finding:
    name = unit.name
    if not unit.installed:
        if name == REDIS:
            return note(f"{name} is not installed", "Redis is not managed by Sluice")
        return fail(f"{name} is not installed", "the installation is incomplete", _INSTALL)
    if unit["LoadState"] != "loaded":
        return fail(
            f"{name} is {unit['LoadState']}", "systemd cannot load it", f"systemctl cat {name}"
        )
    seen = f"{name} is {unit.active} ({unit['SubState']}), {unit['UnitFileState'] or 'transient'}"
    if unit.active == "failed":
        return fail(seen, _result_of(unit), _start_again(unit))
    if unit["SubState"] == "auto-restart":
        return fail(seen, f"{_result_of(unit)}; systemd is restarting it", _start_again(unit))
    if unit.active in ("inactive", "deactivating"):
        if name == GATEWAY and _is_socket_listening(all_units):
            return note(seen, "the socket is listening; the first request starts the service")
        if name == ECHO_WORKER and _has_other_workers(all_units):
            return note(seen, "other workers are running instead")
        return fail(seen, "it was stopped, or never started", f"sudo systemctl start {name}")
    if unit["UnitFileState"] not in _ENABLED and not (
        name == GATEWAY and _is_socket_listening(all_units)
    ):
        cause = "it will not start when the machine boots"
        return warn(seen, cause, f"sudo systemctl enable {name}")
    if unit["NeedDaemonReload"] == "yes":
        cause = "its file was changed, but systemd still uses the old one"
        return warn(seen, cause, f"sudo systemctl daemon-reload && sudo systemctl restart {name}")
    return ok(seen)


_INSTALL = "sudo deploy/install.sh install"


def _is_socket_listening(all_units: list[Unit]) -> bool:
    return any(unit.name == GATEWAY_SOCKET and unit.active == "active" for unit in all_units)


def _has_other_workers(all_units: list[Unit]) -> bool:
    template = WORKERS.partition("*")[0]
    return any(unit.name.startswith(template) and unit.active == "active" for unit in all_units)


def _result_of(unit: Unit) -> str:
    status = unit["ExecMainStatus"]
    words = _RESULTS.get(unit["Result"], f"result {unit['Result']}").format(status=status)
    if status == _CONFIG_ERROR:
        return f"{words}: a setting is invalid; see its log"
    return words


def _start_again(unit: Unit) -> str:
    name = unit.name
    return (
        f"journalctl -u {name} -n 50 --no-pager; then sudo systemctl reset-failed {name} && sudo "
        f"systemctl start {name}"
    )


@check(
    "units.restarts",
    "no unit was restarted by systemd",
    "`journalctl -u UNIT -p warning` shows why it failed",
)
def restarts(machine: Machine) -> Finding:
    """Automatic restarts can hide a unit that keeps failing."""
    restarted = {unit.name: unit.restarts for unit in services(machine) if unit.restarts}
    if not restarted:
        return ok("no restarts")
    seen = ", ".join(f"{name} {plural(count, 'time')}" for name, count in restarted.items())
    worst = max(restarted, key=lambda name: restarted[name])
    fix = f"journalctl -u {worst} -p warning -n 50 --no-pager"
    cause = "the unit failed or was killed, and systemd restarted it"
    if restarted[worst] > HARMLESS_RESTARTS:
        return warn(seen, cause, fix)
    return note(seen, cause, fix)


@check(
    "units.security",
    f"each unit is sandboxed: at most {MAX_EXPOSURE}, the gateway {GATEWAY_MAX_EXPOSURE}, by "
    "`systemd-analyze security`",
    "`systemctl cat UNIT` shows the drop-in that weakens it; `sudo deploy/install.sh install` "
    "restores Sluice's unit files",
    timeout_s=60.0,
)
def security(machine: Machine) -> list[Finding]:
    """Compares the exposure scores of systemd-analyze with the limits."""
    found = []
    for unit in services(machine):
        output = machine.run(("systemd-analyze", "--no-pager", "security", unit.name), COMMAND_S)
        match = _SCORE.search(output.text)
        if match is None:
            raise CheckSkipped(
                f"systemd-analyze security: {output.text.strip()[:100] or 'no answer'}"
            )
        limit = GATEWAY_MAX_EXPOSURE if unit.name == GATEWAY else MAX_EXPOSURE
        seen = f"{unit.name} {match[1]} (at most {limit})"
        if float(match[1]) <= limit:
            found.append(ok(seen))
        else:
            cause = "a drop-in or another unit file weakens its sandbox"
            fix = f"systemctl cat {unit.name}; systemd-analyze security {unit.name}"
            found.append(warn(seen, cause, fix))
    return found


@check(
    "units.drop_ins",
    "drop-ins that change the units of Sluice (information)",
    "`systemctl revert UNIT` removes them",
)
def drop_ins(machine: Machine) -> Finding:
    """Local changes can explain other findings."""
    files = [file for unit in sluice_units(machine) for file in unit.drop_ins]
    if not files:
        return ok("none")
    cause = "these files change the units of Sluice"
    return note(", ".join(files), cause, "systemctl cat 'redis-gateway*'")


@check(
    "units.collision",
    "the distribution's redis-server.service does not collide with Sluice's redis.service",
    "`sudo systemctl disable --now redis-server && sudo systemctl daemon-reload && sudo systemctl "
    "enable --now redis`",
)
def collision(machine: Machine) -> Finding:
    """The distribution's unit has the alias redis.service."""
    sluice_units(machine)  # skips the check if no unit of Sluice is installed
    own, distribution = query_units(machine, REDIS, DISTRIBUTION)
    fix = (
        "sudo systemctl disable --now redis-server && sudo systemctl daemon-reload && sudo "
        "systemctl enable --now redis"
    )
    if own.installed and own.id != REDIS:
        cause = f"redis.service starts {own.id} instead of the Redis of Sluice"
        return fail(f"redis.service is an alias of {own.id}", cause, fix)
    if distribution.installed and distribution.active == "active":
        cause = "a second Redis uses memory, and clients may connect to the wrong one"
        return warn(f"{distribution.id} is running in addition to redis.service", cause, fix)
    if distribution.installed and distribution["UnitFileState"] == "enabled":
        cause = "a second Redis will start when the machine boots"
        return warn(f"{distribution.id} is enabled in addition to redis.service", cause, fix)
    return ok("systemd starts no other Redis")


CHECKS = (state, restarts, security, drop_ins, collision)
