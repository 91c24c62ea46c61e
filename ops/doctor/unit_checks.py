"""systemd: do our units run, are they sandboxed, and does nobody stand in their way?"""

from __future__ import annotations

import re

from ops.doctor import units
from ops.doctor.box import COMMAND_S, Box
from ops.doctor.finding import Finding, Unable, check, fail, note, ok, warn
from ops.doctor.text import plural
from ops.doctor.units import Unit

#: Highest exposure by `systemd-analyze security`.
MOST_EXPOSED = 1.5
GATEWAY_MOST_EXPOSED = 0.5
#: Restarts that one does not get worried about.
FEW_RESTARTS = 3
_SCORE = re.compile(r"Overall exposure level for .+?: ([\d.]+)")
#: What systemd calls the end of a service, and what that means.
_ENDS = {
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
def state(box: Box) -> list[Finding]:
    """One line for each unit."""
    all_units = units.ours(box)
    return [_state_of(unit, all_units) for unit in all_units]


def _state_of(unit: Unit, all_units: list[Unit]) -> Finding:
    name = unit.name
    if not unit.installed:
        if name == units.REDIS:
            return note(f"{name} is not installed", "somebody else runs Redis")
        return fail(f"{name} is not installed", "the installation is not whole", _INSTALL)
    if unit["LoadState"] != "loaded":
        return fail(
            f"{name} is {unit['LoadState']}", "systemd does not accept it", f"systemctl cat {name}"
        )
    seen = f"{name} is {unit.active} ({unit['SubState']}), {unit['UnitFileState'] or 'transient'}"
    if unit.active == "failed":
        return fail(seen, _end_of(unit), _start_again(unit))
    if unit["SubState"] == "auto-restart":
        return fail(seen, f"{_end_of(unit)}; systemd starts it again", _start_again(unit))
    if unit.active in ("inactive", "deactivating"):
        if name == units.GATEWAY and _listening(all_units):
            return note(seen, "the socket listens; the first request starts it")
        if name == units.ECHO_WORKER and _others_work(all_units):
            return note(seen, "other workers run in its place")
        return fail(seen, "it was stopped, or never started", f"sudo systemctl start {name}")
    if unit["UnitFileState"] not in _ENABLED and not (
        name == units.GATEWAY and _listening(all_units)
    ):
        cause = "after a restart of the machine it will not run"
        return warn(seen, cause, f"sudo systemctl enable {name}")
    if unit["NeedDaemonReload"] == "yes":
        cause = "its file was changed; systemd still goes by the old one"
        return warn(seen, cause, f"sudo systemctl daemon-reload && sudo systemctl restart {name}")
    return ok(seen)


_INSTALL = "sudo deploy/install.sh install"


def _listening(all_units: list[Unit]) -> bool:
    return any(unit.name == units.GATEWAY_SOCKET and unit.active == "active" for unit in all_units)


def _others_work(all_units: list[Unit]) -> bool:
    template = units.WORKERS.partition("*")[0]
    return any(unit.name.startswith(template) and unit.active == "active" for unit in all_units)


def _end_of(unit: Unit) -> str:
    status = unit["ExecMainStatus"]
    words = _ENDS.get(unit["Result"], f"result {unit['Result']}").format(status=status)
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
def restarts(box: Box) -> Finding:
    """A unit that keeps ending hides behind its restarts."""
    restarted = {unit.name: unit.restarts for unit in units.services(box) if unit.restarts}
    if not restarted:
        return ok("no unit was started again")
    seen = ", ".join(f"{name} {plural(count, 'time')}" for name, count in restarted.items())
    worst = max(restarted, key=lambda name: restarted[name])
    fix = f"journalctl -u {worst} -p warning -n 50 --no-pager"
    cause = "it ended by itself or was ended, and systemd started it again"
    if restarted[worst] > FEW_RESTARTS:
        return warn(seen, cause, fix)
    return note(seen, cause, fix)


@check(
    "units.security",
    f"each unit is sandboxed: at most {MOST_EXPOSED}, the gateway {GATEWAY_MOST_EXPOSED}, by "
    "`systemd-analyze security`",
    "`systemctl cat UNIT` shows the drop-in that loosens it; `sudo deploy/install.sh install` puts "
    "our own files back",
    limit_s=60.0,
)
def security(box: Box) -> list[Finding]:
    """What a unit that was broken into could do."""
    found = []
    for unit in units.services(box):
        output = box.run(("systemd-analyze", "--no-pager", "security", unit.name), COMMAND_S)
        match = _SCORE.search(output.text)
        if match is None:
            raise Unable(f"systemd-analyze security: {output.text.strip()[:100] or 'no answer'}")
        limit = GATEWAY_MOST_EXPOSED if unit.name == units.GATEWAY else MOST_EXPOSED
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
def drop_ins(box: Box) -> Finding:
    """Somebody's own changes explain much."""
    files = [file for unit in units.ours(box) for file in unit.drop_ins]
    if not files:
        return ok("none")
    return note(", ".join(files), "they change our units", "systemctl cat 'redis-gateway*'")


@check(
    "units.collision",
    "the distribution's redis-server.service does not take the name, port or memory of ours",
    "`sudo systemctl disable --now redis-server && sudo systemctl daemon-reload && sudo systemctl "
    "enable --now redis`",
)
def collision(box: Box) -> Finding:
    """Debian's unit has the alias redis.service."""
    units.ours(box)  # where no unit of ours is installed, theirs is none of our business
    mine, theirs = units.ask(box, units.REDIS, units.DISTRIBUTION)
    fix = (
        "sudo systemctl disable --now redis-server && sudo systemctl daemon-reload && sudo "
        "systemctl enable --now redis"
    )
    if mine.installed and mine.id != units.REDIS:
        cause = f"the name redis.service means {mine.id}: ours is not the one that is started"
        return fail(f"redis.service is an alias of {mine.id}", cause, fix)
    if theirs.installed and theirs.active == "active":
        cause = "a second Redis takes memory, and clients may talk to the wrong one"
        return warn(f"{theirs.id} runs beside redis.service", cause, fix)
    if theirs.installed and theirs["UnitFileState"] == "enabled":
        cause = "at the next start of the machine a second Redis runs"
        return warn(f"{theirs.id} is enabled beside redis.service", cause, fix)
    return ok("no other Redis is started by systemd")


CHECKS = (state, restarts, security, drop_ins, collision)
