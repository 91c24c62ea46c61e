"""What a person sees while waiting: one changing line on a terminal, few lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from client.terminal.text import printable

#: Nobody is told of what is quick.
AFTER_S = 1.0
TERMINAL_EVERY_S, LOG_EVERY_S = 0.2, 5.0
BAR = 24


class Progress:
    """How far a command is, on stderr."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        after_s: float = AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr
        self._terminal = self._stream.isatty()
        self._quiet = quiet
        self._every_s = TERMINAL_EVERY_S if self._terminal else LOG_EVERY_S
        self._clock = clock
        self._next = clock() + after_s
        self._shown = False

    def show(self, text: str) -> None:
        """Tell how far it is, unless that was told just now."""
        if self._quiet or self._clock() < self._next:
            return
        self._next = self._clock() + self._every_s
        if self._terminal:
            print(f"\r{printable(text)}", end="\x1b[K", file=self._stream, flush=True)
            self._shown = True
        else:
            print(printable(text), file=self._stream, flush=True)

    def bar(self, what: str, done: int, total: int) -> None:
        """The same, with a bar."""
        filled = min(BAR, BAR * done // total) if total > 0 else 0
        self.show(f"{what} [{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}")

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._shown = False
