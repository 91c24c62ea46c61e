"""Child processes with resource limits, for untrusted input.

A parser or a regular expression may run for ever or use all memory. A thread cannot be killed, a
process can.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from sluice.worker.errors import TransientError

#: The child gets the parent's `sys.path`, and no environment except `_PASSED_ON`. It cannot read
#: the credentials of the unit, where the kernel has Landlock.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from sluice.worker.execution.process_pool.confine import hide_credentials; "
    "hide_credentials(sys.argv[2]); "
    "from {module} import main; main(*sys.argv[3:])"
)
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


def start_process(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Run `main(*arguments)` of a module in a process that communicates over standard streams;
    raises TransientError if it cannot be started."""
    boot = _BOOT.format(module=module)
    credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")
    try:
        return subprocess.Popen(
            [sys.executable, "-IB", "-c", boot, json.dumps(sys.path), credentials, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                **(environment or {}),
            },
            bufsize=0,
            start_new_session=True,  # so that Ctrl-C in a terminal reaches only the worker
        )
    except OSError as error:
        raise TransientError(f"cannot start a child process: {error}") from error


def hide_credentials(directory: str) -> None:
    """Make systemd's directory of credentials unreadable for this process, if there is one."""
    if os.path.isdir(directory):
        from sluice.worker.execution.process_pool.landlock import hide

        hide(directory)


def own_tasks() -> int:
    """Threads of this process's user."""
    count = 0
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if path.stat().st_uid == os.getuid():
                count += len(os.listdir(f"{path}/task"))
    return count


def limit_resources(memory_bytes: int, **limits: int) -> None:
    """Limit memory, disable core dumps, and set further `RLIMIT_…` limits of this process. Called
    first in a child process."""
    bounds = {"RLIMIT_AS": memory_bytes, "RLIMIT_CORE": 0, **limits}
    for name, most in bounds.items():
        limit = getattr(resource, name)
        _, allowed = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY:  # a sandbox may have a stricter limit
            most = min(most, allowed)
        resource.setrlimit(limit, (most, most))
