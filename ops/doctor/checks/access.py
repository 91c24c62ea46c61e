"""Checks of access: Redis' default user and socket, credentials and settings files."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from sluice.common.process.host import is_loopback
from sluice.common.text import plural
from sluice.ops.doctor.checks.settings import read_file, setting_files
from sluice.ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from sluice.ops.doctor.machine import Machine

_WORLD_MAY_CONNECT = stat.S_IWOTH


@check(
    "redis.default_user",
    "clients without credentials do not have full access to Redis",
    "`redis-cli ACL SETUSER default off`, once every client has its own user; the installer "
    "creates them",
)
def default_user(machine: Machine) -> Finding:
    """With an open default user, every process that can connect has full access."""
    server = machine.server
    user = server.default_user()
    if not user.enabled:
        return ok("the default user is disabled")
    if user.needs_password:
        return ok("the default user requires a password")
    mode = _socket_mode(machine)
    private = mode is not None and not mode & 0o007
    if server.setting("port") == "0" and private:
        return ok(
            "the default user needs no password, but only owner and group of the socket can connect"
        )
    return warn(
        "the default user needs no password"
        + ("" if user.is_unrestricted else ", with limited rights"),
        "every process that can connect may read and delete all jobs",
        f"give every client its own user (sudo deploy/install.sh install creates them), then "
        f"{server.target.cli} ACL SETUSER default off",
    )


@check(
    "redis.bind",
    "Redis listens only on a unix socket or loopback, unless it requires a password",
    "set `bind 127.0.0.1 -::1` in redis.conf and restart Redis",
)
def bind(machine: Machine) -> Finding:
    """An open Redis on the internet is found by scanners within hours."""
    server = machine.server
    port = server.setting("port")
    if port == "0":
        return ok("unix socket only, no TCP port")
    addresses = [word.lstrip("-") for word in server.setting("bind").split()] or ["*"]
    beyond = [address for address in addresses if not is_loopback(address)]
    seen = f"listens on {', '.join(addresses)}, port {port}"
    if not beyond:
        return ok(seen)
    fix = f"set `bind 127.0.0.1 -::1` in {server.config_file}, then systemctl restart redis"
    user = server.default_user()
    if not user.open:
        cause = "reachable from the network, with a password sent over plain TCP"
        return note(seen, cause, fix)
    if server.setting("protected-mode") == "yes":
        cause = "no password is set; only protected-mode prevents access from the network"
        return warn(seen, cause, fix)
    return fail(seen, "anyone on the network can read and delete all jobs", fix)


@check(
    "redis.socket",
    "other users cannot connect to the unix socket",
    "set `unixsocketperm 770` in redis.conf and restart Redis",
)
def socket(machine: Machine) -> Finding:
    path = machine.local_server.target.socket_path
    if path is None:
        raise CheckSkipped("Redis is connected over TCP")
    mode = _socket_mode(machine)
    if mode is None:
        raise CheckSkipped(f"the mode of {path} cannot be read")
    seen = f"{path} has mode {stat.S_IMODE(mode):03o}"
    if not mode & _WORLD_MAY_CONNECT:
        return ok(seen)
    where = machine.server.config_file
    fix = f"sudo chmod o= {path}, and set `unixsocketperm 770` in {where}"
    try:
        is_open = machine.server.default_user().open
    except CheckSkipped:
        is_open = True
    if is_open:
        return warn(seen, "every user of this machine can connect without a password", fix)
    return note(seen, "every user of this machine can connect, but needs a password", fix)


def _socket_mode(machine: Machine) -> int | None:
    """The mode of the socket of the connection, or of the one in Redis' configuration."""
    try:
        path = machine.server.target.socket_path or machine.server.setting("unixsocket")
    except CheckSkipped:
        return None
    try:
        return machine.path(path).stat().st_mode if path else None
    except OSError:
        return None


CHECKS = (default_user, bind, socket)


CREDENTIALS = "/etc/sluice/credentials"
_SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|API_?KEY|PRIVATE")
_URL_WITH_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@|[?&]password=")
_OTHERS = 0o077


@check(
    "secrets.credentials",
    "only root can read /etc/sluice/credentials",
    "`sudo chown -R root:root /etc/sluice/credentials && sudo chmod 700 /etc/sluice/credentials && "
    "sudo chmod 600 /etc/sluice/credentials/*`",
)
def credentials(machine: Machine) -> Finding:
    """systemd passes each service its own credentials."""
    directory = machine.path(CREDENTIALS)
    try:
        entries = [directory, *sorted(directory.iterdir())]
        loose = [found for path in entries if (found := _too_open(path, machine))]
    except FileNotFoundError:
        raise CheckSkipped(f"{CREDENTIALS} does not exist") from None
    except PermissionError:
        return ok(f"{CREDENTIALS} is not readable by this user")
    if not loose:
        return ok(f"{plural(len(entries) - 1, 'file')} in {CREDENTIALS}, readable by root only")
    fix = (
        f"sudo chown -R root:root {CREDENTIALS} && sudo chmod 700 {CREDENTIALS} && sudo chmod 600 "
        f"{CREDENTIALS}/*"
    )
    return fail(", ".join(loose), "other users can read the Redis passwords", fix)


def _too_open(path: Path, machine: Machine) -> str:
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS or found.st_uid != machine.owner_uid:
        return f"{path.name} has mode {mode:03o} and owner {found.st_uid}"
    return ""


@check(
    "secrets.environment",
    "settings files contain no passwords",
    "move the password to /etc/sluice/credentials (`LoadCredential=`), and change it: it was "
    "readable",
)
def environment(machine: Machine) -> Finding:
    """`systemctl show` shows environment variables to every user."""
    files = [name for name in setting_files(machine) if machine.read(name) is not None]
    if not files:
        raise CheckSkipped("no settings files in /etc/sluice, or readable by root only")
    found = [
        f"{name} in {file}"
        for file in files
        for name, value in read_file(machine, file).items()
        if value and (_SECRET_NAME.search(name) or _URL_WITH_PASSWORD.search(value))
    ]
    if not found:
        return ok(f"no secret in {', '.join(files)}")
    return warn(
        ", ".join(found),
        "environment variables of a service are visible to other users and inherited by children",
        f"move it to {CREDENTIALS}/gateway.redis_url (mode 600), remove the line, and change the "
        "password",
    )


SECRET_CHECKS = (credentials, environment)
