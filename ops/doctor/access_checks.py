"""Redis: who can reach it, and what may they do?"""

from __future__ import annotations

import stat

from common.network import is_loopback
from ops.doctor.box import Box
from ops.doctor.finding import Finding, Unable, check, fail, note, ok, warn

_WORLD_MAY_CONNECT = stat.S_IWOTH


@check(
    "redis.default_user",
    "whoever connects without a name may not do everything",
    "`redis-cli ACL SETUSER default off` once every client has a user of its own; the installer "
    "makes them",
)
def default_user(box: Box) -> Finding:
    """An open default user makes every process of the box an administrator."""
    server = box.server
    user = server.default_user()
    if not user.enabled:
        return ok("the default user is off")
    if user.needs_password:
        return ok("the default user needs a password")
    mode = _socket_mode(box)
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
def bind(box: Box) -> Finding:
    """A Redis that the network can reach is found within hours."""
    server = box.server
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
def socket(box: Box) -> Finding:
    """File permissions are the first lock."""
    path = box.local_server.target.socket_path
    if path is None:
        raise Unable("Redis is reached over TCP")
    mode = _socket_mode(box)
    if mode is None:
        raise Unable(f"{path} cannot be looked at")
    seen = f"{path} has mode {stat.S_IMODE(mode):03o}"
    if not mode & _WORLD_MAY_CONNECT:
        return ok(seen)
    where = box.server.config_file
    fix = f"sudo chmod o= {path} now, and the line `unixsocketperm 770` in {where} for good"
    try:
        is_open = box.server.default_user().open
    except Unable:
        is_open = True
    if is_open:
        return warn(seen, "every user of this machine may connect, and needs no password", fix)
    return note(seen, "every user of this machine may connect, though not without a password", fix)


def _socket_mode(box: Box) -> int | None:
    """The mode of the socket by which Redis was reached, or of the one it names."""
    try:
        path = box.server.target.socket_path or box.server.setting("unixsocket")
    except Unable:
        return None
    try:
        return box.path(path).stat().st_mode if path else None
    except OSError:
        return None


CHECKS = (default_user, bind, socket)
