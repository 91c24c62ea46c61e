"""Real worker processes, started and always stopped by the test that wants them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.waiting import TIMEOUT_S, wait_until

ROOT = Path(__file__).parents[3]


class Process:
    """`python -m module` with nothing but the given environment.

    Another Python than that of the tests has its own Sluice; this one uses the source tree.
    """

    def __init__(
        self, module: str, log: Path, python: str = sys.executable, **environment: object
    ) -> None:
        self._log = log
        own = {name.upper(): str(value) for name, value in environment.items()}
        tree = [str(ROOT)] if python == sys.executable else []
        path = os.pathsep.join([own.pop("PYTHONPATH", ""), *tree]).strip(os.pathsep)
        with log.open("wb") as output:
            self.popen = subprocess.Popen(
                [python, "-m", module],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **own},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for_line(self, text: str, timeout_s: float = TIMEOUT_S) -> None:
        wait_until(lambda: text in self.log or self.popen.poll() is not None, timeout_s)
        assert text in self.log, self.log

    def send_signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.log}") from None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.popen.kill()
        self.popen.wait(TIMEOUT_S)


def handler_module(directory: Path, source: str) -> dict[str, str]:
    """Writes a module with handlers; returns the environment of a worker that uses it."""
    name = f"handlers_{uuid.uuid4().hex}"
    (directory / f"{name}.py").write_text(textwrap.dedent(source))
    return {"worker_handlers": name, "pythonpath": str(directory)}


def spawner(directory: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes; those that still run at the end of the test are killed."""
    started: list[Process] = []

    def start(module: str, **environment: object) -> Process:
        started.append(Process(module, directory / f"{len(started)}.log", **environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
