"""A fake systemd: listens, starts processes with its protocol, and receives their messages."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0
#: Passes descriptors and process id as described in sd_listen_fds(3).
_LAUNCH = """
import os, runpy, sys
module, *fds = sys.argv[1:]
for number, fd in enumerate(fds):
    os.dup2(int(fd), 3 + number, inheritable=True)
if fds:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)))
os.execv(sys.executable, [sys.executable, "-X", "faulthandler", "-m", module])
"""


class NotifySocket:
    """The socket for messages to systemd."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def receive(self, timeout_s: float = TIMEOUT_S) -> dict[str, str] | None:
        """The next message; None if none arrives in time."""
        self._socket.settimeout(timeout_s)
        try:
            message = self._socket.recv(65536).decode()
        except TimeoutError:
            return None
        return dict(line.split("=", 1) for line in message.splitlines())

    def receive_until(self, matches: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """The first matching message; others are discarded."""
        deadline = time.monotonic() + TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            message = self.receive(left_s)
            if message is not None and matches(message):
                return message
        raise AssertionError(f"no such message within {TIMEOUT_S} s")

    def close(self) -> None:
        self._socket.close()


class Service(NotifySocket):
    """One process, its messages to systemd, and its log."""

    def __init__(
        self, module: str, directory: Path, sockets: tuple[socket.socket, ...], **settings: str
    ) -> None:
        super().__init__(directory / "notify")
        self._log = directory / "log"
        fds = [one.fileno() for one in sockets]
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "NOTIFY_SOCKET": str(self.path),
            **settings,
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, module, *map(str, fds)],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self) -> int:
        try:
            return self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.log}") from None

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        super().close()


class Systemd:
    """Starts services and stops all of them at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._services: list[Service] = []
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=512)

    @property
    def port(self) -> int:
        port: int = self.listening.getsockname()[1]
        return port

    def gateway(self, **settings: str) -> Service:
        """A gateway that gets the listening socket."""
        return self._start("gateway", self.listening, **settings)

    def worker(self, **settings: str) -> Service:
        return self._start("worker", **settings)

    def echo_worker(self, **settings: str) -> Service:
        return self._start("worker.echo_worker", **settings)

    def start(self, module: str, **settings: str) -> Service:
        return self.gateway(**settings) if module == "gateway" else self.worker(**settings)

    def _start(self, module: str, *sockets: socket.socket, **settings: str) -> Service:
        directory = self._directory / str(len(self._services))
        directory.mkdir()
        self._services.append(Service(module, directory, sockets, **settings))
        return self._services[-1]

    def close(self) -> None:
        for service in self._services:
            service.close()
        self.listening.close()


def systemd_in(directory: Path) -> Iterator[Systemd]:
    systemd = Systemd(directory)
    yield systemd
    systemd.close()
