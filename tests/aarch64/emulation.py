"""Lets the kernel of this host run aarch64 programs, for as long as this process runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EMULATOR = "qemu-aarch64-static"
#: Programs and the Debian packages that contain them.
TOOLS = {
    EMULATOR: "qemu-user-static",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
HANDLERS = Path("/proc/sys/fs/binfmt_misc")
#: The first 20 bytes of a little-endian 64-bit ELF program for aarch64, and the bits that count.
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


def what_is_missing() -> str | None:
    """Why this host cannot run an aarch64 Debian; None if it can."""
    if os.geteuid() != 0:
        return "an aarch64 Debian needs root (debootstrap and chroot)"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent and shutil.which("apt-get") is not None:
        _install(sorted({TOOLS[tool] for tool in absent}))
        absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{absent[0]} is not installed: apt-get install {TOOLS[absent[0]]}"
    if not is_native() and "binfmt_misc" not in Path("/proc/filesystems").read_text():
        return "the kernel cannot start programs through an emulator (no binfmt_misc)"
    return None


def is_native() -> bool:
    """True on an aarch64 host, which needs no emulator."""
    return os.uname().machine == "aarch64"


def _install(packages: list[str]) -> None:
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends"]):
        words = packages if command[0] == "install" else []
        subprocess.run(
            ["apt-get", *command, *words],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdout=subprocess.DEVNULL,
            check=False,
        )


@contextmanager
def emulator() -> Iterator[None]:
    """Registers the emulator unless the host has done so. Needs a private mount namespace.

    The handler has a unique name, so that two runs do not remove each other's.
    """
    if is_native():
        yield
        return
    # The mount keeps the handler alive. It ends with the mount namespace.
    subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(HANDLERS)], check=True)
    handler = HANDLERS / f"sluice-aarch64-{os.getpid()}"
    registered = not _is_registered()
    if registered:
        # P: keeps argv[0]. F: opens the emulator now, so that it works in a chroot.
        line = f":{handler.name}:M::{_MAGIC}:{_MASK}:{shutil.which(EMULATOR)}:PF"
        (HANDLERS / "register").write_text(line)
    try:
        yield
    finally:
        if registered:
            handler.write_text("-1")


def _is_registered() -> bool:
    """True if the host has an enabled handler for aarch64 that works in a chroot."""
    magic = "7f454c460201010000000000000000000200b700"
    for handler in HANDLERS.iterdir():
        if handler.name in ("register", "status") or handler.name.startswith("sluice-"):
            continue
        lines = handler.read_text().splitlines()
        flags = next((line for line in lines if line.startswith("flags:")), "")
        if lines[0] == "enabled" and "F" in flags and f"magic {magic}" in lines:
            return True
    return False


def isolated(command: list[str]) -> list[str]:
    """A command whose processes and mounts end with it, and which ends with this process."""
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", *command),
    ]
