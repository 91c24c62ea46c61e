"""Becomes another program that dies with the process that started it, however that dies.

`python -I mcp_child.py PARENT_PID COMMAND ARGUMENT…`
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Of Linux: which signal a process gets when its parent ends. It survives exec.
_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Run `command` in this process's place."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it has ended meanwhile
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
