"""Sockets that systemd listens on and hands to us, so that no restart refuses a connection."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, MutableMapping

from common.errors import SettingsError
from common.network import is_loopback

#: Where systemd's descriptors begin (sd_listen_fds(3)).
FIRST_FD = 3
_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


def inherited(environment: MutableMapping[str, str] = os.environ) -> list[socket.socket]:
    """The sockets that LISTEN_FDS promises to this process; none where it promises none.

    The variables are taken out, so that no child thinks they were meant for it.
    """
    process = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if process != str(os.getpid()):
        return []
    if not count.isdecimal():
        raise SettingsError(f"LISTEN_FDS={count!r}: must be the number of sockets handed over")
    return [_adopt(FIRST_FD + number) for number in range(int(count))]


def _adopt(fd: int) -> socket.socket:
    fault = "is no socket"
    try:
        os.set_inheritable(fd, False)
        adopted = socket.socket(fileno=fd)
    except OSError as error:
        raise SettingsError(f"LISTEN_FDS: descriptor {fd} {fault}: {error.strerror}") from None
    if adopted.family not in _FAMILIES or adopted.type != socket.SOCK_STREAM:
        fault = "is no stream socket; the socket unit needs ListenStream="
    elif not adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        fault = "does not listen; the socket unit needs Accept=no"
    else:
        adopted.setblocking(False)
        return adopted
    adopted.detach()  # not ours to close
    raise SettingsError(f"LISTEN_FDS: descriptor {fd} {fault}")


def beyond_loopback(sockets: Iterable[socket.socket]) -> bool:
    """Whether any of them can be reached from another machine."""
    return any(
        listening.family != socket.AF_UNIX and not is_loopback(listening.getsockname()[0])
        for listening in sockets
    )


def name(listening: socket.socket) -> str:
    """A socket as people would write its address."""
    if listening.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(listening.getsockname())}"
    host, port = listening.getsockname()[:2]
    return (
        f"http://[{host}]:{port}"
        if listening.family == socket.AF_INET6
        else f"http://{host}:{port}"
    )
