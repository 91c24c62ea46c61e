"""Tells a person that something slow goes on, and how far it is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

#: What is over sooner needs no word.
SILENT_S = 2.0
#: How often a terminal and a log are told.
TERMINAL_EVERY_S, LOG_EVERY_S = 0.5, 5.0

MB = 1_000_000


@contextmanager
def telling(
    what: str,
    total_bytes: int = 0,
    done_bytes: Callable[[], int] = lambda: 0,
    stream: TextIO | None = None,
) -> Iterator[None]:
    """While the block lasts, say so from time to time: `… fetching x: 12 of 93 MB (4 s)`."""
    out = stream or sys.stderr
    terminal = out.isatty()
    over = threading.Event()
    started = time.monotonic()

    def tell() -> None:
        wait_s = SILENT_S
        while not over.wait(wait_s):
            wait_s = TERMINAL_EVERY_S if terminal else LOG_EVERY_S
            line = (
                f"… {what}{_amount(done_bytes(), total_bytes)} ({time.monotonic() - started:.0f} s)"
            )
            print(f"\r{line}" if terminal else line, end="\x1b[K" if terminal else "\n", file=out)
            out.flush()
        if terminal and wait_s != SILENT_S:
            print("\r\x1b[K", end="", file=out, flush=True)

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _amount(done: int, total: int) -> str:
    return f": {min(done, total) / MB:.0f} of {total / MB:.0f} MB" if total and done else ""
