"""Progress output: one line per step, and reminders during slow ones."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

#: Interval between reminders during a slow step.
REMIND_EVERY_S = 5.0


class Output:
    """Writes lines to one stream; safe for several threads."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._lock = threading.Lock()

    def line(self, text: str) -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Prints a step that is about to run."""
        self.line(f"· {text}")

    def hint(self, text: str) -> None:
        """Prints additional information."""
        self.line(f"  {text}")

    @contextmanager
    def reminders(self, what: str) -> Iterator[None]:
        """Prints a reminder every REMIND_EVERY_S seconds while the block runs."""
        finished = threading.Event()
        started = time.monotonic()

        def remind() -> None:
            while not finished.wait(REMIND_EVERY_S):
                self.hint(f"… still {what} ({time.monotonic() - started:.0f} s)")

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield
        finally:
            finished.set()
            reminder.join()
