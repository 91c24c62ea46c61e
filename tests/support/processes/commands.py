"""Runs the `sluice` command in this process, in a pipe or on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from sluice import cli
from tests.support.processes.gateway import environment, free_port

TIMEOUT_S = 60.0
SLUICE = (sys.executable, "-m", "sluice")


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run(*words: str, stdin: bytes = b"", cwd: Path | None = None, **settings: str) -> CommandResult:
    done = subprocess.run(
        (*SLUICE, *words),
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment(**settings),
        cwd=cwd,
    )
    ran = CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert "Traceback" not in ran.err, ran.err
    return ran


def run_here(*words: str, stdin: bytes = b"", **settings: str) -> CommandResult:
    """Run a command in the process of the test, as if it were in a pipe."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8") for name in ("stdout", "stderr")}
    given = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    with patch.multiple(sys, stdin=given, **streams), patch.dict(os.environ, clear=True):
        os.environ.update(environment(**settings))
        try:
            code = cli.run(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    for stream in streams.values():
        stream.flush()
    out, err = (stream.buffer.getvalue().decode() for stream in streams.values())  # type: ignore[attr-defined]
    return CommandResult(int(code), out, err)


def unused_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


class Terminal:
    """A command on a pseudo-terminal; collects its output and sends keys."""

    def __init__(self, *words: str, columns: int = 100, rows: int = 30, **settings: str) -> None:
        self._end, child_end = pty.openpty()
        defaults = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(rows)}
        env = environment(**{**defaults, **settings})
        self.process = subprocess.Popen(
            (*SLUICE, *words),
            env=env,
            stdin=child_end,
            stdout=child_end,
            stderr=child_end,
            # Ctrl-C on this terminal reaches only the command.
            preexec_fn=_own_terminal,
        )
        os.close(child_end)
        self.shown = ""

    def wait_for(self, pattern: str) -> str:
        """Wait until the output matches the pattern; returns all output."""
        deadline = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.shown):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            if not self._read(0.5) and self.process.poll() is not None:
                assert re.search(pattern, self.shown), self.shown
        return self.shown

    def _read(self, timeout_s: float) -> bool:
        ready, _, _ = select.select([self._end], [], [], timeout_s)
        if not ready:
            return False
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # on Linux: the other end is closed
            return False
        self.shown += piece.decode(errors="replace")
        return bool(piece)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def ctrl_c(self) -> None:
        self.press("\x03")

    def end(self) -> int:
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read(0.2)
        while self._read(0):
            pass
        assert "Traceback" not in self.shown, self.shown
        return self.process.returncode

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)
        os.close(self._end)


def _own_terminal() -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
