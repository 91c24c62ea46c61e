"""What the operator sees: one line a step, and for slow ones that it still goes on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

#: A step that takes longer says so, this often.
STILL_EVERY_S = 5.0


class Say:
    """Writes progress to one stream, without ever mixing two lines."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._turn = threading.Lock()

    def line(self, text: str) -> None:
        """One line, at once."""
        with self._turn:
            print(text, file=self._stream, flush=True)

    def step(self, text: str) -> None:
        """Something is done now."""
        self.line(f"· {text}")

    def hint(self, text: str) -> None:
        """Something that the operator should know."""
        self.line(f"  {text}")

    @contextmanager
    def patience(self, what: str) -> Iterator[None]:
        """While the block lasts, say now and then that it does."""
        over = threading.Event()
        started = time.monotonic()

        def remind() -> None:
            while not over.wait(STILL_EVERY_S):
                self.hint(f"… still {what} ({time.monotonic() - started:.0f} s)")

        reminding = threading.Thread(target=remind, daemon=True)
        reminding.start()
        try:
            yield
        finally:
            over.set()
            reminding.join()
