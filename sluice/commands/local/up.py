"""`sluice up`: run gateway and worker together, on a private Redis unless REDIS_URL is set."""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from enum import Enum
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sluice.errors import SERVER_EXTRA, MissingRequirement
from sluice.transport.request import local_address, local_url

#: File in SLUICE_DATA_DIR, written by `sluice model serve`.
MODEL_FILE = "model.json"
#: Values of --worker: depending on whether a model is served, real handlers, echo worker.
WORKER_MODES = ("auto", "real", "echo")
#: Timeout of the health check of a model server in seconds.
ANSWER_S = 2.0
#: Seconds the gateway may take to become ready; Redis may have to load a large append-only file.
READY_TIMEOUT_S = 60.0
#: Longer than the worker's shutdown grace period, so that it is not cut short.
STOP_TIMEOUT_S = 60.0
#: Seconds between checks of the processes and the model.
POLL_S = 0.2

_GATEWAY, _WORKER = "gateway", "worker"
_SERVER_PACKAGES = ("fastapi", "redis", "uvicorn")
_GET_MODEL = (
    "For a real model, run `make model` in another terminal (or `sluice model install`, then "
    "`sluice model serve`)"
)
_HINT = f"The echo worker answers all jobs. {_GET_MODEL}."
_NO_MODEL = f"chat, plan and code need a model, and none is served. {_GET_MODEL}, or set MODEL_URL."
#: Jobs of the banner: for the echo worker or a model; for the real worker without a model; and if
#: the worker has modules of the user, which may replace the handlers of the other two.
_CHAT_JOB = '{"task":"chat","payload":{"text":"hello"}}'
_TOOL_JOB = '{"task":"tool","payload":{"tool":"calculator","args":{"expression":"6 * 7"}}}'
_SEARCH_JOB = '{"task":"rag","payload":{"query":"hello"}}'
_WELCOME = """
Sluice is up. In another terminal:

  JOB=$(curl -s {url}/v1/jobs -H 'Content-Type: application/json' \\
    -d '{job}' | sed 's/.*"job_id":"\\([^"]*\\)".*/\\1/')
  curl -N {url}/v1/jobs/$JOB/events

API: {url}/docs    Dashboard: {url}/ui    Stop: Ctrl-C
{worker}
"""


class WorkerKind(Enum):
    """Which worker runs: the echo worker, or the one with real handlers."""

    ECHO = "echo"
    REAL = "real"


_MODULES = {WorkerKind.ECHO: "sluice.worker.echo_worker", WorkerKind.REAL: "sluice.worker"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a gateway and a worker until Ctrl-C, with a private Redis unless REDIS_URL is set. "
        "HOST and PORT set the address of the gateway (default: 127.0.0.1:8080)."
    )
    parser.epilog = """Examples:
  sluice up
  sluice up --worker real
  PORT=9000 sluice up"""
    parser.add_argument(
        "--worker",
        choices=WORKER_MODES,
        default=WORKER_MODES[0],
        help="auto (default): real handlers if MODEL_URL is set or a model is served, else echo",
    )


def run(arguments: argparse.Namespace) -> int:
    _require_packages()
    _require_free_port()
    supervisor = Supervisor(WorkerChoice(arguments.worker))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, supervisor.request_stop)
    try:
        return supervisor.run()
    finally:
        supervisor.close()


def _require_packages() -> None:
    missing = [name for name in _SERVER_PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingRequirement(
            f"`sluice up` needs the packages {', '.join(missing)}: pip install '{SERVER_EXTRA}'"
        )


def _require_free_port() -> None:
    """Raise MissingRequirement if another process listens on the gateway's address.

    The gateway itself reports an address that is invalid.
    """
    host, port = local_address()
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (ValueError, OverflowError, OSError):
        return
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the gateway does
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                other = int(port) % 65535 + 1
                raise MissingRequirement(
                    f"port {port} of {host} is used by another process; stop it, or use another "
                    f"port: PORT={other} make run, or PORT={other} sluice up"
                ) from None


class ServedModel(NamedTuple):
    """The model announced by `sluice model serve`."""

    name: str
    url: str
    pid: int

    def answers(self) -> bool:
        """True if a server answers at the URL, even while it is loading the model."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=ANSWER_S):
                return True
        except urllib.error.HTTPError:
            return True
        except (OSError, ValueError):
            return False

    def is_running(self) -> bool:
        """True if the serving process exists."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # a process of another user
            return True
        return True


def served_model() -> ServedModel | None:
    """The announced model; None if there is none.

    Does not use `sluice.ops.model.announcement`, which would import redis into this process.
    """
    directory = os.environ.get("SLUICE_DATA_DIR") or ".sluice"
    try:
        content = json.loads((Path(directory) / MODEL_FILE).read_text())
        return ServedModel(str(content["model"]), str(content["url"]), int(content["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class WorkerChoice:
    """Chooses the worker: as set by --worker, else depending on the announced model.

    When the model server exits normally, it withdraws its announcement and the echo worker takes
    over. After a crash the announcement stays, and jobs wait for the model.
    """

    def __init__(self, mode: str) -> None:
        self._model_url = os.environ.get("MODEL_URL", "").strip()
        self._fixed: WorkerKind | None = None
        if mode != WORKER_MODES[0]:
            self._fixed = WorkerKind(mode)
        elif self._model_url:
            self._fixed = WorkerKind.REAL
        self._model: ServedModel | None = None
        #: An announcement left by a model server that was killed before this start: ignored.
        self._stale: ServedModel | None = None
        self._reported: ServedModel | None = None

    def initial(self) -> WorkerKind:
        found = served_model()
        if found is not None and not found.answers():
            self._stale = found
        return self.current()

    def current(self) -> WorkerKind:
        found = served_model()
        self._model = None if found == self._stale else found
        if self._fixed is not None:
            return self._fixed
        return WorkerKind.ECHO if self._model is None else WorkerKind.REAL

    def warnings(self) -> Iterator[str]:
        """A message if the model server crashed; once per announcement."""
        model = self._model
        if model is None or model == self._reported or model.is_running():
            return
        if served_model() == model:  # otherwise it has just exited normally
            self._reported = model
            yield (
                f"model {model.name}: the server (process {model.pid}) is gone; jobs wait for it; "
                "restart it with `make model` or `sluice model serve`"
            )

    def describe(self, kind: WorkerKind) -> str:
        """A line that describes what answers jobs with this worker."""
        if kind is WorkerKind.ECHO:
            return "The echo worker answers all jobs." if self._fixed else _HINT
        model = self._model_name
        return f"chat, plan and code are answered by {model} now" if model else _NO_MODEL

    def example(self, kind: WorkerKind) -> str:
        """A job, as JSON, that this worker can do."""
        if kind is WorkerKind.ECHO or self._model_name:
            return _CHAT_JOB
        return _SEARCH_JOB if os.environ.get("WORKER_HANDLERS", "").strip() else _TOOL_JOB

    @property
    def _model_name(self) -> str:
        """The model that answers, or its URL; empty if there is none."""
        return self._model_url or (self._model.name if self._model is not None else "")


class Supervisor:
    """Runs the gateway and the worker. A replaced worker finishes its jobs before it exits."""

    def __init__(self, choice: WorkerChoice) -> None:
        self._choice = choice
        self._kind = choice.initial()
        self._env = {**os.environ, "LOG_LEVEL": os.environ.get("LOG_LEVEL", "warning")}
        if "HOST" not in os.environ:  # the gateway is reachable from this machine only
            self._env.setdefault("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "localhost,127.0.0.1,::1")
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._replaced: list[subprocess.Popen[bytes]] = []
        #: True if the worker has changed since it was last reported.
        self._is_change_unreported = False
        self._stopping = False

    def request_stop(self, signum: int, frame: object) -> None:
        """Signal handler. Takes effect within POLL_S."""
        self._stopping = True

    def run(self) -> int:
        """Run until a process exits or a signal arrives; returns the exit code."""
        url = local_url()
        self._children[_GATEWAY] = self._start("sluice.gateway")
        self._children[_WORKER] = self._start(_MODULES[self._kind])
        self._wait_ready(url)
        if self._is_running():
            job, worker = self._choice.example(self._kind), self._choice.describe(self._kind)
            print(_WELCOME.format(url=url, job=job, worker=worker), flush=True)
        while self._is_running():
            self._update_worker()
            time.sleep(POLL_S)
        if self._stopping:
            print("stopping", flush=True)
            return 0
        return self._report_exit()

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        # A new session: Ctrl-C reaches only this process, which stops its children in order.
        return subprocess.Popen(
            [sys.executable, "-m", module], env=self._env, start_new_session=True
        )

    def _is_running(self) -> bool:
        return not self._stopping and all(child.poll() is None for child in self._children.values())

    def _update_worker(self) -> None:
        """Start the other worker if the choice changed; report it once the old one has exited."""
        self._replaced = [worker for worker in self._replaced if worker.poll() is None]
        if self._is_change_unreported and not self._replaced:
            self._is_change_unreported = False
            print(self._choice.describe(self._kind), flush=True)
        kind = self._choice.current()
        for warning in self._choice.warnings():
            print(warning, flush=True)
        if kind is not self._kind:
            old = self._children[_WORKER]
            old.terminate()
            self._replaced.append(old)
            self._children[_WORKER], self._kind = self._start(_MODULES[kind]), kind
            self._is_change_unreported = True

    def _wait_ready(self, url: str) -> None:
        started = time.monotonic()
        reported = False
        while self._is_running() and time.monotonic() < started + READY_TIMEOUT_S:
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                    return
            except (OSError, HTTPException):
                if not reported and time.monotonic() - started > 2:
                    reported = True
                    print("waiting for the gateway to be ready", file=sys.stderr, flush=True)
                time.sleep(0.05)

    def _report_exit(self) -> int:
        """Print which process exited; returns its exit code."""
        for name, child in self._children.items():
            if child.poll() is not None:
                print(f"sluice: the {name} exited with code {child.returncode}", file=sys.stderr)
                return child.returncode or 1
        return 1

    def close(self) -> None:
        """Stop all processes; kill those that take longer than STOP_TIMEOUT_S."""
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
