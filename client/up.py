"""`sluice up`: gateway and echo worker together, on a private Redis unless REDIS_URL is set."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from client.place import local_url

#: How long the gateway may take until it is ready (a large append-only file has to be loaded).
READY_TIMEOUT_S = 60.0
#: More than the worker's own grace, so that it is never cut short.
STOP_TIMEOUT_S = 60.0

_TRY_IT = """
Sluice is up. In another terminal:

  JOB=$(curl -s {url}/v1/jobs -H 'Content-Type: application/json' \\
    -d '{{"task":"chat","payload":{{"text":"hello"}}}}' | sed 's/.*"job_id":"\\([^"]*\\)".*/\\1/')
  curl -N {url}/v1/jobs/$JOB/events

API: {url}/docs    Stop: Ctrl-C
"""


class _Stop(Exception):
    """We were told to stop."""


def up() -> int:
    """Run everything until Ctrl-C; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_stop)
    url = local_url()
    quiet = {**os.environ, "LOG_LEVEL": os.environ.get("LOG_LEVEL", "warning")}
    children: list[subprocess.Popen[bytes]] = []
    code = 0
    try:
        for module in ("gateway", "worker.echo_worker"):
            # Own sessions: Ctrl-C reaches us, and we stop them in order.
            child = subprocess.Popen(
                [sys.executable, "-m", module], env=quiet, start_new_session=True
            )
            children.append(child)
        _wait_ready(url, children)
        print(_TRY_IT.format(url=url), flush=True)
        while all(child.poll() is None for child in children):
            time.sleep(0.2)
        code = _report_end(children)
    except _Stop:
        print("stopping", flush=True)
    finally:
        _stop(children)
    return code


def _wait_ready(url: str, children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    started = time.monotonic()
    told = False
    while time.monotonic() < deadline and all(child.poll() is None for child in children):
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            if not told and time.monotonic() - started > 2:
                told = True
                print("waiting for the gateway to be ready", file=sys.stderr, flush=True)
            time.sleep(0.05)


def _report_end(children: list[subprocess.Popen[bytes]]) -> int:
    """A child ended by itself: say which, pass its code on."""
    for child, name in zip(children, ("gateway", "worker")):
        if child.poll() is not None:
            print(f"sluice: the {name} ended with code {child.returncode}", file=sys.stderr)
            return child.returncode or 1
    return 1


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for child in children:
        try:
            child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _raise_stop(signum: int, frame: object) -> None:
    raise _Stop
