"""Checks of systemd units: state, restarts, sandbox, drop-ins and collisions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from common.text import plural
from ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from ops.doctor.machine import COMMAND_S, MODEL_UNIT, Machine

REDIS = "redis.service"
GATEWAY_SOCKET = "redis-gateway.socket"
GATEWAY = "redis-gateway.service"
ECHO_WORKER = "redis-echo-worker.service"
WORKERS = "redis-worker@*.service"
UNITS = (REDIS, GATEWAY_SOCKET, GATEWAY, ECHO_WORKER)
#: Only with `install.sh --with-model`.
MODEL = "sluice-model.service"
#: The unit of Debian and Ubuntu; its alias is the name of Sluice's.
DISTRIBUTION = "redis-server.service"
#: Addresses that mean all of them.
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
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit; `name` was asked for, `id` is the name in systemd."""

    name: str
    values: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    @property
    def id(self) -> str:
        """The unit's own name; differs from `name` for an alias."""
        return self["Id"] or self.name

    @property
    def installed(self) -> bool:
        return self["LoadState"] not in ("not-found", "")

    @property
    def active(self) -> str:
        return self["ActiveState"]

    @property
    def restarts(self) -> int:
        return int(self["NRestarts"]) if self["NRestarts"].isdecimal() else 0

    @property
    def drop_ins(self) -> list[str]:
        return self["DropInPaths"].split()


def query_units(machine: Machine, *names: str) -> list[Unit]:
    """The properties of units, read with one command."""
    properties = [part for name in _PROPERTIES for part in ("-p", name)]
    text = machine.systemctl("show", *properties, "--", *names)
    blocks = [_parse(block) for block in text.strip().split("\n\n")]
    if len(blocks) != len(names) or not all(blocks):
        raise CheckSkipped(f"systemctl show: {text.strip()[:200] or 'no answer'}")
    return [Unit(name, values) for name, values in zip(names, blocks)]


def sluice_units(machine: Machine) -> list[Unit]:
    """Sluice's units with all worker instances; skips the check if none is installed."""
    listed = machine.systemctl("list-units", "--all", "--no-legend", "--", WORKERS)
    instances = [words[0].lstrip("●*") for line in listed.splitlines() if (words := line.split())]
    instances = [name for name in instances if name.startswith("redis-worker@")]
    model = (MODEL,) if machine.path(MODEL_UNIT).exists() else ()
    found = query_units(machine, *UNITS, *model, *instances)
    # A redis.service may exist without Sluice.
    if not any(unit.installed for unit in found if unit.name != REDIS):
        raise CheckSkipped("no unit of Sluice is installed")
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


#: Highest exposure by `systemd-analyze security`.
MAX_EXPOSURE = 1.5
GATEWAY_MAX_EXPOSURE = 0.5
#: Restarts that are no warning.
HARMLESS_RESTARTS = 3
_SCORE = re.compile(r"Overall exposure level for .+?: ([\d.]+)")
#: systemd's results of a service, in words.
_RESULTS = {
    "exit-code": "it ended with exit code {status}",
    "signal": "it was ended by signal {status}",
    "core-dump": "it crashed",
    "watchdog": "it did not say in time that its loop turns",
    "timeout": "it did not start or stop in time",
    "oom-kill": "the kernel ended it for want of memory",
    "start-limit-hit": "it ended again and again, and systemd gave up",
    "resources": "systemd could not give it what it asks for",
}
_CONFIG_ERROR = "78"
_ENABLED = ("enabled", "enabled-runtime", "static", "indirect", "alias", "generated", "linked")


@check(
    "units.state",
    "each unit runs and is started at boot",
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
            return note(f"{name} is not installed", "somebody else runs Redis")
        return fail(f"{name} is not installed", "the installation is not whole", _INSTALL)
    if unit["LoadState"] != "loaded":
        return fail(
            f"{name} is {unit['LoadState']}", "systemd does not accept it", f"systemctl cat {name}"
        )
    seen = f"{name} is {unit.active} ({unit['SubState']}), {unit['UnitFileState'] or 'transient'}"
    if unit.active == "failed":
        return fail(seen, _result_of(unit), _start_again(unit))
    if unit["SubState"] == "auto-restart":
        return fail(seen, f"{_result_of(unit)}; systemd starts it again", _start_again(unit))
    if unit.active in ("inactive", "deactivating"):
        if name == GATEWAY and _is_socket_listening(all_units):
            return note(seen, "the socket listens; the first request starts it")
        if name == ECHO_WORKER and _has_other_workers(all_units):
            return note(seen, "other workers run in its place")
        return fail(seen, "it was stopped, or never started", f"sudo systemctl start {name}")
    if unit["UnitFileState"] not in _ENABLED and not (
        name == GATEWAY and _is_socket_listening(all_units)
    ):
        cause = "after a restart of the machine it will not run"
        return warn(seen, cause, f"sudo systemctl enable {name}")
    if unit["NeedDaemonReload"] == "yes":
        cause = "its file was changed; systemd still goes by the old one"
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
        return f"{words}: a setting is wrong, and its log names it"
    return words


def _start_again(unit: Unit) -> str:
    name = unit.name
    return (
        f"journalctl -u {name} -n 50 --no-pager; then sudo systemctl reset-failed {name} && sudo "
        f"systemctl start {name}"
    )


@check(
    "units.restarts",
    "systemd did not have to start a unit again",
    "`journalctl -u UNIT -p warning` tells why it ended",
)
def restarts(machine: Machine) -> Finding:
    """Restarts hide a unit that keeps failing."""
    restarted = {unit.name: unit.restarts for unit in services(machine) if unit.restarts}
    if not restarted:
        return ok("no unit was started again")
    seen = ", ".join(f"{name} {plural(count, 'time')}" for name, count in restarted.items())
    worst = max(restarted, key=lambda name: restarted[name])
    fix = f"journalctl -u {worst} -p warning -n 50 --no-pager"
    cause = "it ended by itself or was ended, and systemd started it again"
    if restarted[worst] > HARMLESS_RESTARTS:
        return warn(seen, cause, fix)
    return note(seen, cause, fix)


@check(
    "units.security",
    f"each unit is sandboxed: at most {MAX_EXPOSURE}, the gateway {GATEWAY_MAX_EXPOSURE}, by "
    "`systemd-analyze security`",
    "`systemctl cat UNIT` shows the drop-in that loosens it; `sudo deploy/install.sh install` puts "
    "our own files back",
    timeout_s=60.0,
)
def security(machine: Machine) -> list[Finding]:
    """By the exposure score of systemd-analyze."""
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
            cause = "a drop-in or another unit file loosens its sandbox"
            fix = f"systemctl cat {unit.name}; systemd-analyze security {unit.name}"
            found.append(warn(seen, cause, fix))
    return found


@check(
    "units.drop_ins",
    "which drop-ins change our units",
    "`systemctl revert UNIT` removes them",
)
def drop_ins(machine: Machine) -> Finding:
    """Local changes may explain other findings."""
    files = [file for unit in sluice_units(machine) for file in unit.drop_ins]
    if not files:
        return ok("none")
    return note(", ".join(files), "they change our units", "systemctl cat 'redis-gateway*'")


@check(
    "units.collision",
    "the distribution's redis-server.service does not take the name, port or memory of ours",
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
        cause = f"the name redis.service means {own.id}: ours is not the one that is started"
        return fail(f"redis.service is an alias of {own.id}", cause, fix)
    if distribution.installed and distribution.active == "active":
        cause = "a second Redis takes memory, and clients may talk to the wrong one"
        return warn(f"{distribution.id} runs beside redis.service", cause, fix)
    if distribution.installed and distribution["UnitFileState"] == "enabled":
        cause = "at the next start of the machine a second Redis runs"
        return warn(f"{distribution.id} is enabled beside redis.service", cause, fix)
    return ok("no other Redis is started by systemd")


CHECKS = (state, restarts, security, drop_ins, collision)
