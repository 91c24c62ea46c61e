"""Child processes that end with their context."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[1]
STOP_TIMEOUT_S = 10.0
WAIT_TIMEOUT_S = 60.0


class Program:
    """A child process; the benchmark's own programs answer each JSON line with one."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self._process = process
        self._name = name
        self.pid = process.pid

    def send(self, **message: Any) -> None:
        stdin = _open(self._process.stdin)
        stdin.write(json.dumps(message) + "\n")
        stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Waits for a line; raises RuntimeError if the process has ended."""
        line = _open(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self._name} ended early, exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **message: Any) -> dict[str, Any]:
        self.send(**message)
        return self.receive()

    def pause(self) -> None:
        """Freezes the process."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        """Raises RuntimeError if the process has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._name} ended early, exit code {self._process.returncode}")

    def kill(self) -> None:
        """Ends it at once; the results are already known."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Sends SIGTERM, then SIGKILL after a timeout."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def program(module: str, *args: str, env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """Runs `python -m module` within the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *args],
        cwd=_ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    running = Program(process, module)
    try:
        yield running
    finally:
        running.stop()


def wait_until(
    what: str,
    ready: Callable[[], bool],
    *,
    while_alive: Program | None = None,
    timeout_s: float = WAIT_TIMEOUT_S,
    every_s: float = 0.02,
) -> None:
    """Polls until `ready` returns True; raises RuntimeError after the time limit."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if while_alive is not None:
            while_alive.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(every_s)


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
