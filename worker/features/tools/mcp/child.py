"""Executes another program so that it ends with the process that started it.

Usage: `python -I child.py PARENT_PID COMMAND ARGUMENT…`
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Linux prctl option: signal to send when the parent ends. It survives exec.
_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Replace this process by `command`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent has already ended
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
