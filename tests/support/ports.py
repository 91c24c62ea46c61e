"""Loopback ports for servers that tests start, stop and restart."""

from __future__ import annotations

import random
import socket
import sys

HOST = "127.0.0.1"
#: Below the ephemeral ports: an outgoing connection could otherwise occupy the port of a server
#: that is about to start.
_FIRST, _LAST = 20_000, 29_999
_TRIES = 500


def pick(last: int = _LAST, *, offset: int = 0) -> int:
    """Returns a port that is free and reserved for this process until it ends.

    The port `offset` above it is free, too.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST, last)
        if _reserve(port) and all(_is_free(port + more) for more in {0, offset}):
            return port
    raise RuntimeError(f"no free port between {_FIRST} and {last} found in {_TRIES} tries")


def _reserve(port: int) -> bool:
    """Reserves a port among test processes with an abstract socket name, which only one can hold.

    Checked before trying the port: trying it occupies it for a moment, and the server that it was
    reserved for might start just then.
    """
    if sys.platform != "linux":  # only Linux removes such names with their holder
        return True
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0sluice-port-{port}")
    except OSError:
        holder.close()
        return False
    holder.detach()  # closed when this process ends
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
