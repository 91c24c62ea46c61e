"""A container with systemd as process 1 and only a loopback network."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.system.cgroups import Groups, has_systemd

T = TypeVar("T")

#: Directory trees; upper ones hide files of lower ones.
Layers = tuple[Path, ...]

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "SYSTEMD_PAGER": "cat",
    "SYSTEMD_COLORS": "0",
}
BOOT_S = 60.0
POWER_OFF_S = 60.0
#: systemd powers off cleanly when its process 1 gets this signal.
POWER_OFF_SIGNAL = signal.SIGRTMIN + 4

_numbers = itertools.count(1)
#: System calls with which a process hides files from itself.
LANDLOCK = "landlock_create_ruleset landlock_add_rule landlock_restrict_self"


@dataclass(frozen=True)
class CommandResult:
    """The result of a command inside the machine."""

    command: str
    code: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return f"$ {self.command}\nexit code {self.code}\n{self.stdout}\n{self.stderr}"


class CommandFailed(AssertionError):
    """A command inside the machine exited with an unexpected code."""


class Machine:
    """One booted container. It dies with this process in any case.

    Its tree consists of layers: the lower ones are shared and read-only, and it writes into its
    own.
    """

    def __init__(self, layers: Layers, directory: Path) -> None:
        self.name = f"sluice-{os.getpid()}-{next(_numbers)}"
        self._home = directory / self.name
        self._below = layers
        self._above, self._work, self._root, self._console = (
            self._home / part for part in ("above", "work", "root", "console")
        )
        for part in (self._above, self._work, self._root):
            part.mkdir(parents=True, mode=0o755)
        self._groups = Groups(self.name)
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0

    @property
    def layers(self) -> Layers:
        """The layers of this machine, as a base for others once it is powered off."""
        return (self._above, *self._below)

    def boot(self) -> None:
        """Starts systemd and waits until everything has started."""
        below = ":".join(map(str, self._below))
        options = f"lowerdir={below},upperdir={self._above},workdir={self._work}"
        mounting = ["mount", "-t", "overlay", "overlay", "-o", options, str(self._root)]
        booting = [
            *("systemd-nspawn", "--quiet", "-D", str(self._root), f"--machine={self.name}"),
            *("--boot", "--private-network", "--console=pipe", "--link-journal=no"),
            # Without a container, nothing would filter them.
            f"--system-call-filter={LANDLOCK}",
            # Required on a host without systemd and machined.
            *("--register=no", *([] if has_systemd() else ["--keep-unit"])),
        ]
        inner = f"{shlex.join(mounting)} && exec {shlex.join(booting)}"
        # Namespaces that end with this process: no process and no mount is left behind.
        outer = shlex.join(
            [
                *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork"),
                *("--kill-child=KILL", "--mount-proc", "sh", "-c", inner),
            ]
        )
        self._groups.make()
        with self._console.open("wb") as console:
            self._nspawn = subprocess.Popen(
                ["sh", "-c", f"{self._groups.enter_command()}exec {outer}"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        self._leader = self.wait_for(self._find_leader, BOOT_S, "a systemd that listens")
        state = self.run("systemctl is-system-running --wait", code=None, timeout_s=BOOT_S)
        if state.stdout.strip() != "running":
            raise CommandFailed(f"{state}\n{self.troubles()}")

    def _find_leader(self) -> int:
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            raise CommandFailed(f"systemd-nspawn gave up:\n{self._console.read_text()}")
        with suppress(OSError):  # its children come and go
            for nspawn in _children(self._nspawn.pid):
                for child in _children(nspawn):
                    if Path(f"/proc/{child}/root/run/systemd/private").exists():
                        return child
        return 0

    def run(
        self, command: str, *, code: int | None = 0, timeout_s: float = 60.0, stdin: str = ""
    ) -> CommandResult:
        """Runs a shell command inside; raises CommandFailed unless it exits with this code (None:
        any).
        """
        # The inner `timeout` ends the command inside; the outer one is a safeguard.
        inside = ["timeout", "-k", "5", str(timeout_s), "bash", "-c", command]
        done = subprocess.run(
            self._enter(inside),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s + 20,
        )
        result = CommandResult(command, done.returncode, done.stdout, done.stderr)
        if code is not None and result.code != code:
            raise CommandFailed(str(result))
        return result

    def start(self, command: str) -> subprocess.Popen[str]:
        """Starts a shell command inside and leaves it running; it ends with the machine."""
        return subprocess.Popen(
            self._enter(["bash", "-c", command]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def _enter(self, command: list[str]) -> list[str]:
        entering = ["nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w"]
        variables = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return [*entering, "--", "env", "-i", *variables, *command]

    def wait_for(self, condition: Callable[[], T], timeout_s: float, what: str) -> T:
        """Waits until a condition is true; the error names what it waited for."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise CommandFailed(f"waited {timeout_s} s in vain for {what}")
            time.sleep(0.05)

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        shown = self.run(f"systemctl show {shlex.quote(name)} -p {','.join(properties)}").stdout
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def prop(self, name: str, property: str) -> str:
        return self.unit(name, property)[property]

    def path(self, inside: str) -> Path:
        """Path outside the machine of a path inside."""
        return Path(f"/proc/{self._leader}/root", inside.lstrip("/"))

    def copy_in(self, source: Path, inside: str) -> None:
        """Copies a file or a directory into the machine."""
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target)

    def write(self, inside: str, text: str) -> None:
        target = self.path(inside)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, inside: str) -> str:
        return self.path(inside).read_text()

    def journal(self, *options: str) -> str:
        command = ["journalctl", "--no-pager", "-o", "short-precise", *options]
        return self.run(shlex.join(command), code=None).stdout

    def troubles(self) -> str:
        """Failed units and the end of the journal, for failed tests."""
        if self._nspawn is None or self._nspawn.poll() is not None:
            return "the machine is off"
        failed = self.run("systemctl --no-legend --failed", code=None).stdout
        return f"failed units:\n{failed}\njournal:\n{self.journal('-b', '-n', '150')}"

    def power_off(self) -> None:
        """Shuts the machine down cleanly; the tree is kept."""
        if self._nspawn is None:
            return
        if self._leader:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(self._leader, POWER_OFF_SIGNAL)
                self._nspawn.wait(POWER_OFF_S)
        self._nspawn.kill()  # kills process 1, and everything with it
        self._nspawn.wait()
        self._nspawn, self._leader = None, 0
        self._groups.remove()

    def destroy(self) -> None:
        """Stops the machine and removes its tree."""
        self.power_off()
        shutil.rmtree(self._home)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def booted(layers: Layers, directory: Path) -> Iterator[Machine]:
    """A machine within the block."""
    machine = Machine(layers, directory)
    try:
        machine.boot()
        yield machine
    finally:
        machine.destroy()
