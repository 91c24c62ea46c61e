"""Tells systemd how this process is: `sd_notify`, without its library. Elsewhere, nothing."""

from __future__ import annotations

import os
import socket

#: Whoever should listen is given so long to take a message; then it is dropped.
SEND_TIMEOUT_S = 0.5
_SOCKET = "NOTIFY_SOCKET"
READY, STOPPING, WATCHDOG = "READY=1", "STOPPING=1", "WATCHDOG=1"


def enabled() -> bool:
    """Whether anybody wants to know."""
    return bool(os.environ.get(_SOCKET))


def send(*assignments: str) -> bool:
    """Send some of the assignments below in one message; whether it went out. Never raises."""
    address = os.environ.get(_SOCKET, "")
    if not address:
        return False
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(SEND_TIMEOUT_S)
            line.connect(address)
            line.sendall("\n".join(assignments).encode(errors="replace"))
    except (OSError, ValueError):
        return False
    return True


def status(text: str) -> str:
    """What `systemctl status` should say."""
    return f"STATUS={' '.join(text.split())}"


def extend_timeout(seconds: float) -> str:
    """Starting or stopping goes on for at least so long; to be said again before it is over."""
    return f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}"


def watchdog_s() -> float | None:
    """Within how many seconds systemd wants to hear from us each time; None if it does not."""
    try:
        period_s = int(os.environ["WATCHDOG_USEC"]) / 1e6
        ours = int(os.environ.get("WATCHDOG_PID", os.getpid())) == os.getpid()
    except (KeyError, ValueError):
        return None
    return period_s if ours and period_s > 0 else None
