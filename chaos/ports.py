"""Loopback ports that stay free while a server restarts."""

from __future__ import annotations

import random
import socket

#: Below where systems take the ports of outgoing connections from: one of those would otherwise
#: now and then sit on the port of a server that is just being restarted.
_FIRST, _LAST = 20_000, 29_999
_TRIES = 200


def pick() -> int:
    """A port nobody listens on."""
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port between {_FIRST} and {_LAST} found in {_TRIES} tries")
