"""Runs the `sluice` command in a pipe or on a pseudo-terminal, and a stack to run it against."""

from __future__ import annotations

import contextlib
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

from tests.gateway.processes import PYTHON_M, GatewayProcess, environment, free_port
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

TIMEOUT_S = 60.0
SLUICE = (sys.executable, "-m", "sluice")
#: A chat handler whose behaviour depends on the text of the payload.
HANDLERS = """
import asyncio

from sluice.worker import JobError


async def chat(context, payload):
    text = payload.get("text", "")
    if text == "fail":
        raise JobError("no \\x1b[31mspace")
    if text == "forever":
        await context.emit("message", {"delta": "well … ", "n": 1, "attempt": context.attempt})
        await asyncio.sleep(3600)
    if text == "hostile":
        text = "a\\x1b[2Jb\\x07c\\u202ed"
    for n, word in enumerate(text.split(" "), 1):
        await context.emit("message", {"delta": word + " ", "n": n, "attempt": context.attempt})
    return {"text": text, "words": n}


def register(registry):
    registry.add("chat", chat)
"""


class Stack:
    """A Redis, a gateway and a worker with test handlers."""

    def __init__(self, server: RealServer, directory: Path, **settings: str) -> None:
        self.server = server
        (directory / "clihandlers.py").write_text(HANDLERS)
        self.gateway = GatewayProcess(
            PYTHON_M, directory / "gateway.log", PORT="0", REDIS_URL=server.url, **settings
        )
        self.worker = Process(
            "worker",
            directory / "worker.log",
            redis_url=server.url,
            worker_handlers="clihandlers",
            PYTHONPATH=str(directory),
            heartbeat_s=0.5,
            embedder="off",
        )
        self.gateway.wait_until_listening()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def run(self, *words: str, **more: str) -> CommandResult:
        return run(*words, SLUICE_URL=self.url, **more)

    def submit(self, text: str) -> str:
        ran = self.run("submit", "chat", text)
        assert ran.code == 0, ran
        return ran.out.strip()

    def wait_for(self, job_id: str, status: str) -> None:
        wait_until(
            lambda: self.run("get", job_id, "--field", "status").out.strip() == status, TIMEOUT_S
        )

    def close(self) -> None:
        self.worker.kill()
        self.gateway.close()


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def run(*words: str, stdin: bytes = b"", cwd: Path | None = None, **settings: str) -> CommandResult:
    """Run a command in a pipe."""
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


def unused_url() -> str:
    """A URL at which no server listens."""
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
        """Wait until the command exits; returns its exit code."""
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
