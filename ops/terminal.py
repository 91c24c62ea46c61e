"""Terminal output of the operator commands: formats, safe text, readable units, progress."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

#: Work that ends sooner shows no progress.
SHOW_AFTER_S = 2.0
#: Seconds between updates on a terminal, and in a log.
TERMINAL_EVERY_S, LOG_EVERY_S = 0.5, 5.0
_MB = 1_000_000


def add_format_option(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Add -o and --json. The first of `formats` is the default."""
    parser.add_argument("-o", "--output", choices=formats, default=formats[0], help="output format")
    parser.add_argument(
        "--json", dest="output", action="store_const", const="json", help="the same as -o json"
    )


def printable(text: str) -> str:
    """Text with every control character and line end replaced by `?`."""
    return "".join(char if char.isprintable() else "?" for char in text)


def format_bytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MB"


def format_duration(seconds: float) -> str:
    """Seconds in a readable unit, such as `5 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.0f} days"


def discard_stdout() -> None:
    """After a broken pipe: keep the interpreter from flushing stdout again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def show_progress(
    what: str,
    total_bytes: int = 0,
    done_bytes: Callable[[], int] = lambda: 0,
    stream: TextIO | None = None,
) -> Iterator[None]:
    """While the block runs, print lines such as `… fetching x: 12 of 93 MB (4 s)`."""
    out = stream or sys.stderr
    terminal = out.isatty()
    finished = threading.Event()
    started = time.monotonic()

    def update() -> None:
        wait_s = SHOW_AFTER_S
        while not finished.wait(wait_s):
            wait_s = TERMINAL_EVERY_S if terminal else LOG_EVERY_S
            line = (
                f"… {what}{_amount(done_bytes(), total_bytes)} ({time.monotonic() - started:.0f} s)"
            )
            print(f"\r{line}" if terminal else line, end="\x1b[K" if terminal else "\n", file=out)
            out.flush()
        if terminal and wait_s != SHOW_AFTER_S:
            print("\r\x1b[K", end="", file=out, flush=True)

    thread = threading.Thread(target=update, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _amount(done: int, total: int) -> str:
    return f": {min(done, total) / _MB:.0f} of {total / _MB:.0f} MB" if total and done else ""
