"""`sluice up`: gateway and worker together, on a private Redis unless REDIS_URL is set."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from client.commands.worker_choice import WISHES, Choice, Kind
from client.place import local_url

#: How long the gateway may take until it is ready (a large append-only file has to be loaded).
READY_TIMEOUT_S = 60.0
#: More than the worker's own grace, so that it is never cut short.
STOP_TIMEOUT_S = 60.0
#: How often we look at the processes and for a model.
LOOK_EVERY_S = 0.2

_GATEWAY, _WORKER = "gateway", "worker"
_MODULES = {Kind.ECHO: "worker.echo_worker", Kind.REAL: "worker"}

_TRY_IT = """
Sluice is up. In another terminal:

  JOB=$(curl -s {url}/v1/jobs -H 'Content-Type: application/json' \\
    -d '{{"task":"chat","payload":{{"text":"hello"}}}}' | sed 's/.*"job_id":"\\([^"]*\\)".*/\\1/')
  curl -N {url}/v1/jobs/$JOB/events

API: {url}/docs    Dashboard: {url}/ui    Stop: Ctrl-C
{who}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument(
        "--worker",
        choices=WISHES,
        default=WISHES[0],
        help="auto: the real handlers where MODEL_URL is set or a model is served, else echo",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run everything until Ctrl-C; returns the exit code."""
    household = Household(Choice(arguments.worker))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, household.told_to_stop)
    try:
        return household.run()
    finally:
        household.close()


class Household:
    """The gateway, the worker of the moment, and those that still finish their jobs."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._kind = choice.first()
        self._env = {**os.environ, "LOG_LEVEL": os.environ.get("LOG_LEVEL", "warning")}
        if "HOST" not in os.environ:  # nobody but this machine can ask, so it may be told, too
            self._env.setdefault("WORKFLOW_WEBHOOK_ALLOWED_HOSTS", "localhost,127.0.0.1,::1")
        #: Gateway and worker.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._leaving: list[subprocess.Popen[bytes]] = []
        #: Whether somebody else answers since it was last said who does.
        self._changed = False
        self._stopping = False

    def told_to_stop(self, signum: int, frame: object) -> None:
        """Ctrl-C; noticed with the next look."""
        self._stopping = True

    def run(self) -> int:
        """Look after them until one ends, or we are told to stop; returns the exit code."""
        url = local_url()
        self._children[_GATEWAY] = self._start("gateway")
        self._children[_WORKER] = self._start(_MODULES[self._kind])
        self._wait_ready(url)
        if self._goes_on():
            who = self._choice.words(self._kind)
            print(_TRY_IT.format(url=url, who=who), flush=True)
        while self._goes_on():
            self._follow_the_model()
            time.sleep(LOOK_EVERY_S)
        if self._stopping:
            print("stopping", flush=True)
            return 0
        return self._report_end()

    def _start(self, module: str) -> subprocess.Popen[bytes]:
        # Own sessions: Ctrl-C reaches us, and we stop them in order.
        return subprocess.Popen(
            [sys.executable, "-m", module], env=self._env, start_new_session=True
        )

    def _goes_on(self) -> bool:
        return not self._stopping and all(child.poll() is None for child in self._children.values())

    def _follow_the_model(self) -> None:
        """Another worker, if another one is due. The old one finishes the jobs that it has; when it
        is gone, everything new is the new one's."""
        self._leaving = [worker for worker in self._leaving if worker.poll() is None]
        if self._changed and not self._leaving:
            self._changed = False
            print(self._choice.words(self._kind), flush=True)
        kind = self._choice.now()
        for word in self._choice.news():
            print(word, flush=True)
        if kind is not self._kind:
            old = self._children[_WORKER]
            old.terminate()
            self._leaving.append(old)
            self._children[_WORKER], self._kind = self._start(_MODULES[kind]), kind
            self._changed = True

    def _wait_ready(self, url: str) -> None:
        started = time.monotonic()
        told = False
        while self._goes_on() and time.monotonic() < started + READY_TIMEOUT_S:
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                if not told and time.monotonic() - started > 2:
                    told = True
                    print("waiting for the gateway to be ready", file=sys.stderr, flush=True)
                time.sleep(0.05)

    def _report_end(self) -> int:
        """A child ended by itself: say which, pass its code on."""
        for name, child in self._children.items():
            if child.poll() is not None:
                print(f"sluice: the {name} ended with code {child.returncode}", file=sys.stderr)
                return child.returncode or 1
        return 1

    def close(self) -> None:
        """Stop all of them, in good order."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in (*self._children.values(), *self._leaving):
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
