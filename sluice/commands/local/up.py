"""`sluice up`: gateway and worker together, on a private Redis unless REDIS_URL is set."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from sluice.transport.config import local_url

#: In SLUICE_DATA_DIR; written by `sluice model serve`.
MODEL_FILE = "model.json"
#: Values of --worker: chosen by what is served, always the real handlers, always echo.
WORKER_MODES = ("auto", "real", "echo")
#: Seconds within which a model server must answer to count as running.
ANSWER_S = 2.0
#: How long the gateway may take to become ready (it may have to load a large append-only file).
READY_TIMEOUT_S = 60.0
#: Longer than the worker's own grace period, so that it is never cut short.
STOP_TIMEOUT_S = 60.0
#: How often processes and the model are checked.
POLL_S = 0.2

_GATEWAY, _WORKER = "gateway", "worker"
_HINT = "Answers are echoes. For a real model: make model (or: sluice model install, then serve)"
_WELCOME = """
Sluice is up. In another terminal:

  JOB=$(curl -s {url}/v1/jobs -H 'Content-Type: application/json' \\
    -d '{{"task":"chat","payload":{{"text":"hello"}}}}' | sed 's/.*"job_id":"\\([^"]*\\)".*/\\1/')
  curl -N {url}/v1/jobs/$JOB/events

API: {url}/docs    Dashboard: {url}/ui    Stop: Ctrl-C
{worker}
"""


class WorkerKind(Enum):
    """The two workers."""

    ECHO = "echo"
    REAL = "real"


_MODULES = {WorkerKind.ECHO: "worker.echo_worker", WorkerKind.REAL: "worker"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument(
        "--worker",
        choices=WORKER_MODES,
        default=WORKER_MODES[0],
        help="auto: the real handlers where MODEL_URL is set or a model is served, else echo",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run everything until Ctrl-C; returns the exit code."""
    supervisor = Supervisor(WorkerChoice(arguments.worker))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, supervisor.request_stop)
    try:
        return supervisor.run()
    finally:
        supervisor.close()


class ServedModel(NamedTuple):
    """The model that `sluice model serve` announces."""

    name: str
    url: str
    pid: int

    def answers(self) -> bool:
        """Whether a server answers at the URL, even while it still loads the model."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=ANSWER_S):
                return True
        except urllib.error.HTTPError:
            return True
        except (OSError, ValueError):
            return False

    def is_running(self) -> bool:
        """Whether the serving process still exists."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # a process of another user
            return True
        return True


def served_model() -> ServedModel | None:
    """The announced model; None if there is none.

    Read here and not by `ops.model.announcement`, which would load redis into this process.
    """
    directory = os.environ.get("SLUICE_DATA_DIR") or ".sluice"
    try:
        content = json.loads((Path(directory) / MODEL_FILE).read_text())
        return ServedModel(str(content["model"]), str(content["url"]), int(content["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class WorkerChoice:
    """Which worker should run: the one of --worker, else by what `sluice model serve` announces.

    A model that exits normally withdraws its announcement, and the echo worker answers again. After
    a crash the announcement stays, and the jobs wait for the model.
    """

    def __init__(self, mode: str) -> None:
        self._model_url = os.environ.get("MODEL_URL", "").strip()
        self._fixed: WorkerKind | None = None
        if mode != WORKER_MODES[0]:
            self._fixed = WorkerKind(mode)
        elif self._model_url:
            self._fixed = WorkerKind.REAL
        self._model: ServedModel | None = None
        #: Announced by a process that was killed before this one started: ignored.
        self._stale: ServedModel | None = None
        self._reported: ServedModel | None = None

    def initial(self) -> WorkerKind:
        """The worker to start with."""
        found = served_model()
        if found is not None and not found.answers():
            self._stale = found
        return self.current()

    def current(self) -> WorkerKind:
        """The worker that should run now."""
        found = served_model()
        self._model = None if found == self._stale else found
        if self._fixed is not None:
            return self._fixed
        return WorkerKind.ECHO if self._model is None else WorkerKind.REAL

    def warnings(self) -> Iterator[str]:
        """A message if the model crashed; once for each model."""
        model = self._model
        if model is None or model == self._reported or model.is_running():
            return
        if served_model() == model:  # else it has just exited normally
            self._reported = model
            yield f"{model.name} is gone (process {model.pid}); jobs wait for it: make model"

    def describe(self, kind: WorkerKind) -> str:
        """A line that says what answers jobs with this worker."""
        if kind is WorkerKind.ECHO:
            return "The echo worker answers everything." if self._fixed else _HINT
        name = self._model.name if self._model is not None else ""
        by = self._model_url or name or "the model that MODEL_URL or `sluice model serve` names"
        return f"chat, plan and code are answered by {by} now"


class Supervisor:
    """Runs the gateway and the worker; a worker that was replaced finishes its jobs first."""

    def __init__(self, choice: WorkerChoice) -> None:
        self._choice = choice
        self._kind = choice.initial()
        self._env = {**os.environ, "LOG_LEVEL": os.environ.get("LOG_LEVEL", "warning")}
        if "HOST" not in os.environ:  # only this machine can reach the gateway
            self._env.setdefault("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "localhost,127.0.0.1,::1")
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._replaced: list[subprocess.Popen[bytes]] = []
        #: Whether the worker has changed since it was last announced.
        self._is_change_unannounced = False
        self._stopping = False

    def request_stop(self, signum: int, frame: object) -> None:
        """Signal handler; takes effect within POLL_S."""
        self._stopping = True

    def run(self) -> int:
        """Run until one process exits, or a signal; returns the exit code."""
        url = local_url()
        self._children[_GATEWAY] = self._start("gateway")
        self._children[_WORKER] = self._start(_MODULES[self._kind])
        self._wait_ready(url)
        if self._is_running():
            worker = self._choice.describe(self._kind)
            print(_WELCOME.format(url=url, worker=worker), flush=True)
        while self._is_running():
            self._update_worker()
            time.sleep(POLL_S)
        if self._stopping:
            print("stopping", flush=True)
            return 0
        return self._report_exit()

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        # Sessions of their own: Ctrl-C reaches only this process, which stops them in order.
        return subprocess.Popen(
            [sys.executable, "-m", module], env=self._env, start_new_session=True
        )

    def _is_running(self) -> bool:
        return not self._stopping and all(child.poll() is None for child in self._children.values())

    def _update_worker(self) -> None:
        """Replace the worker if another kind is due; announce it once the old one has exited."""
        self._replaced = [worker for worker in self._replaced if worker.poll() is None]
        if self._is_change_unannounced and not self._replaced:
            self._is_change_unannounced = False
            print(self._choice.describe(self._kind), flush=True)
        kind = self._choice.current()
        for warning in self._choice.warnings():
            print(warning, flush=True)
        if kind is not self._kind:
            old = self._children[_WORKER]
            old.terminate()
            self._replaced.append(old)
            self._children[_WORKER], self._kind = self._start(_MODULES[kind]), kind
            self._is_change_unannounced = True

    def _wait_ready(self, url: str) -> None:
        started = time.monotonic()
        reported = False
        while self._is_running() and time.monotonic() < started + READY_TIMEOUT_S:
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                if not reported and time.monotonic() - started > 2:
                    reported = True
                    print("waiting for the gateway to be ready", file=sys.stderr, flush=True)
                time.sleep(0.05)

    def _report_exit(self) -> int:
        """Print which process exited by itself; returns its exit code."""
        for name, child in self._children.items():
            if child.poll() is not None:
                print(f"sluice: the {name} ended with code {child.returncode}", file=sys.stderr)
                return child.returncode or 1
        return 1

    def close(self) -> None:
        """Stop all processes; kills those that take longer than STOP_TIMEOUT_S."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in (*self._children.values(), *self._replaced):
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
