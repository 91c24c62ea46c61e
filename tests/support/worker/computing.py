"""Functions for pool processes. A process imports this module, so it imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path


def double(number: int) -> int:
    print("into nowhere")  # must not get into the replies
    return 2 * number


def dies() -> None:
    os._exit(3)


def takes_all_memory() -> int:
    held = []
    while True:
        held.append(bytearray(64 * 1024 * 1024))


def works_for_ever(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        pass
