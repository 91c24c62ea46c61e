"""Loopback ports for servers that are started, ended and started again by tests."""

from __future__ import annotations

import random
import socket
import sys

HOST = "127.0.0.1"
#: Below where systems take the ports of outgoing connections from: one of those would otherwise
#: now and then sit on the port of a server that is just being started.
_FIRST, _LAST = 20_000, 29_999
_TRIES = 500


def pick(last: int = _LAST, *, beside: int = 0) -> int:
    """A port nobody listens on, ours until this process ends.

    Nor does anybody at `beside` ports further up, where that is wanted.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST, last)
        if _is_ours(port) and all(_is_free(port + more) for more in {0, beside}):
            return port
    raise RuntimeError(f"no free port between {_FIRST} and {last} found in {_TRIES} tries")


def _is_ours(port: int) -> bool:
    """Other test processes look for ports, too; a name that only one can hold decides.

    It is asked before the port is tried: to try one is to take it for a moment, and the server
    for which it was picked might want to listen just then.
    """
    if sys.platform != "linux":  # where such names go with their holder, without a file
        return True
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0sluice-port-{port}")
    except OSError:
        holder.close()
        return False
    holder.detach()  # closed with this process, and not before
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
