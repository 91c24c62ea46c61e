"""Processes for what a stranger could keep busy for ever, or let take all memory.

A parser or a pattern holds the interpreter, and a thread cannot be killed; a process can.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping

from worker.errors import TransientError

#: It gets the caller's paths, and nothing else of its surroundings.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from {module} import main; main(*sys.argv[2:])"
)
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


def start_process(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """`main(*arguments)` of a module of ours, in a process that talks over its standard streams."""
    boot = _BOOT.format(module=module)
    try:
        return subprocess.Popen(
            [sys.executable, "-IB", "-c", boot, json.dumps(sys.path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                **(environment or {}),
            },
            bufsize=0,
            start_new_session=True,  # a terminal's Ctrl-C is for the worker
        )
    except OSError as error:
        raise TransientError(f"no process for it could be started: {error}") from error


def limit_resources(memory_bytes: int, **limits: int) -> None:
    """Called by such a process, first of all: so much memory, no dumps, and `RLIMIT_…` limits."""
    bounds = {"RLIMIT_AS": memory_bytes, "RLIMIT_CORE": 0, **limits}
    for name, most in bounds.items():
        limit = getattr(resource, name)
        _, allowed = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY:  # a sandbox may be stricter than we are
            most = min(most, allowed)
        resource.setrlimit(limit, (most, most))
