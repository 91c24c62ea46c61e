"""Checks of access: Redis' default user and sockets, credentials and settings files."""

from __future__ import annotations

import re
import stat
from pathlib import Path

from common.process.host import is_loopback
from common.text import plural
from ops.doctor.checks.settings import read_file, setting_files
from ops.doctor.finding import CheckSkipped, Finding, check, fail, note, ok, warn
from ops.doctor.machine import Machine

_WORLD_MAY_CONNECT = stat.S_IWOTH


@check(
    "redis.default_user",
    "whoever connects without a name may not do everything",
    "`redis-cli ACL SETUSER default off` once every client has a user of its own; the installer "
    "makes them",
)
def default_user(machine: Machine) -> Finding:
    """With an open default user every process of the machine is an administrator."""
    server = machine.server
    user = server.default_user()
    if not user.enabled:
        return ok("the default user is off")
    if user.needs_password:
        return ok("the default user needs a password")
    mode = _socket_mode(machine)
    private = mode is not None and not mode & 0o007
    if server.setting("port") == "0" and private:
        return ok("the default user is open, and only its socket's owner and group can connect")
    return warn(
        "the default user needs no password" + ("" if user.may_everything else ", with limits"),
        "every process that can connect may read and delete all jobs",
        f"give every client a user of its own (sudo deploy/install.sh install makes them), then "
        f"{server.target.cli} ACL SETUSER default off",
    )


@check(
    "redis.bind",
    "Redis listens on a unix socket or on loopback only, unless it asks for a password",
    "`bind 127.0.0.1 -::1` in redis.conf and a restart",
)
def bind(machine: Machine) -> Finding:
    """A Redis that is open to the internet is found within hours."""
    server = machine.server
    port = server.setting("port")
    if port == "0":
        return ok("no TCP port, a unix socket only")
    addresses = [word.lstrip("-") for word in server.setting("bind").split()] or ["*"]
    beyond = [address for address in addresses if not is_loopback(address)]
    seen = f"listens on {', '.join(addresses)}, port {port}"
    if not beyond:
        return ok(seen)
    fix = f"the line `bind 127.0.0.1 -::1` in {server.config_file}, then systemctl restart redis"
    user = server.default_user()
    if not user.open:
        cause = "the network can reach it; it asks for a name and password, over plain TCP"
        return note(seen, cause, fix)
    if server.setting("protected-mode") == "yes":
        cause = "only protected-mode keeps the network out, because there is no password"
        return warn(seen, cause, fix)
    return fail(seen, "anybody in the network may read and delete all jobs", fix)


@check(
    "redis.socket",
    "the unix socket is closed to other users",
    "`unixsocketperm 770` in redis.conf and a restart",
)
def socket(machine: Machine) -> Finding:
    path = machine.local_server.target.socket_path
    if path is None:
        raise CheckSkipped("Redis is reached over TCP")
    mode = _socket_mode(machine)
    if mode is None:
        raise CheckSkipped(f"{path} cannot be looked at")
    seen = f"{path} has mode {stat.S_IMODE(mode):03o}"
    if not mode & _WORLD_MAY_CONNECT:
        return ok(seen)
    where = machine.server.config_file
    fix = f"sudo chmod o= {path} now, and the line `unixsocketperm 770` in {where} for good"
    try:
        is_open = machine.server.default_user().open
    except CheckSkipped:
        is_open = True
    if is_open:
        return warn(seen, "every user of this machine may connect, and needs no password", fix)
    return note(seen, "every user of this machine may connect, though not without a password", fix)


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
        raise CheckSkipped(f"there is no {CREDENTIALS}") from None
    except PermissionError:
        return ok(f"{CREDENTIALS} is closed to this user")
    if not loose:
        return ok(f"{plural(len(entries) - 1, 'file')} in {CREDENTIALS}, for root only")
    fix = (
        f"sudo chown -R root:root {CREDENTIALS} && sudo chmod 700 {CREDENTIALS} && sudo chmod 600 "
        f"{CREDENTIALS}/*"
    )
    return fail(", ".join(loose), "other users may read passwords of Redis", fix)


def _too_open(path: Path, machine: Machine) -> str:
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS or found.st_uid != machine.owner_uid:
        return f"{path.name} has mode {mode:03o} and owner {found.st_uid}"
    return ""


@check(
    "secrets.environment",
    "no file of settings holds a password",
    "move it to /etc/sluice/credentials (`LoadCredential=`), then change it: it was readable",
)
def environment(machine: Machine) -> Finding:
    """`systemctl show` shows their content to every user."""
    files = [name for name in setting_files(machine) if machine.read(name) is not None]
    if not files:
        raise CheckSkipped("there is no file of settings in /etc/sluice, or only root may read it")
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
        "variables of a service are no secret: its children inherit them",
        f"put it in {CREDENTIALS}/gateway.redis_url (mode 600), remove the line, and change the "
        "password",
    )


SECRET_CHECKS = (credentials, environment)
