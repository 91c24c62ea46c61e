"""Runs inside the machine in a service's sandbox: tries what a compromised service would try.

Prints one JSON object: for each attempt "allowed", or the name of the error.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def connect(family: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as opened:
        opened.settimeout(2)
        opened.connect(("127.0.0.1" if family == socket.AF_INET else "::1", 9))


def write(path: str) -> Callable[[], None]:

    def attempt() -> None:
        target = Path(path) / "left-by-a-probe"
        target.write_text("x")
        target.unlink()

    return attempt


def unshare() -> None:
    """Becomes root in a new user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def writable_code() -> None:
    """Maps memory that is writable and executable."""
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()


def set_user_bit() -> None:
    """Creates a setuid program."""
    target = Path("/tmp/set-user-bit")
    target.write_text("x")
    target.chmod(0o4755)


ATTEMPTS: dict[str, Callable[[], object]] = {
    "open an IPv4 connection": lambda: connect(socket.AF_INET),
    "open an IPv6 connection": lambda: connect(socket.AF_INET6),
    "read the admin's credential": Path("/etc/sluice/credentials/admin.redis_url").read_text,
    "list the credentials": lambda: os.listdir("/etc/sluice/credentials"),
    "read Redis' users": Path("/etc/sluice/users.acl").read_text,
    "read Redis' data": lambda: os.listdir("/var/lib/sluice/redis"),
    "read root's home": lambda: os.listdir("/root"),
    "read the shadow file": Path("/etc/shadow").read_text,
    "write to /etc": write("/etc"),
    "write to /usr": write("/usr"),
    "write to the gateway's home": write("/opt/redis-gateway"),
    "write to the worker's home": write("/opt/redis-worker"),
    "write to the state directory": write("/var/lib/sluice"),
    "read the status of process 1": Path("/proc/1/status").read_text,
    "make a user namespace": unshare,
    "write code to memory": writable_code,
    "set a user bit": set_user_bit,
}


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    return "allowed"


if __name__ == "__main__":
    json.dump({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}, sys.stdout)
    print(flush=True)
