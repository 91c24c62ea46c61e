"""Progress output on stderr, and full-screen terminal output."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Sequence
from types import TracebackType

from sluice.terminal.text import printable

#: Commands that end sooner show no progress.
SHOW_AFTER_S = 1.0
#: Seconds between updates on a terminal, and in a log.
TERMINAL_EVERY_S, LOG_EVERY_S = 0.2, 5.0
BAR_WIDTH = 24


def progress_bar(what: str, done: int, total: int) -> str:
    """Such as `uploading [######..................] 1/4`."""
    filled = min(BAR_WIDTH, BAR_WIDTH * done // total) if total > 0 else 0
    return f"{what} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{total}"


class Progress:
    """Progress of a command on stderr: one line that is updated on a terminal, else log lines."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        after_s: float = SHOW_AFTER_S,
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
        """Show a text, unless the last one was shown less than an interval ago."""
        if self._quiet or self._clock() < self._next:
            return
        self._next = self._clock() + self._every_s
        if self._terminal:
            print(f"\r{printable(text)}", end="\x1b[K", file=self._stream, flush=True)
            self._shown = True
        else:
            print(printable(text), file=self._stream, flush=True)

    def show_bar(self, what: str, done: int, total: int) -> None:
        self.show(progress_bar(what, done, total))

    def clear(self) -> None:
        """Remove the progress line before other output."""
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._shown = False


_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class FullScreen:
    """The alternate screen, without cursor and echo. Restores the terminal on exit."""

    def __enter__(self) -> FullScreen:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        self._handlers = {
            number: signal.signal(number, _exit_on_signal)
            for number in (signal.SIGTERM, signal.SIGHUP)
        }
        tty.setcbreak(self._input)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
        finally:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and rows."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the screen content in one write, to avoid flicker."""
        _, rows = self.size
        text = f"{_REST_OF_LINE}\r\n".join(lines[:rows])
        sys.stdout.write(f"{_HOME}{text}{_REST_OF_LINE}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def key(self, timeout_s: float) -> str:
        """The next key; empty if none is pressed within the timeout."""
        ready, _, _ = select.select([self._input], [], [], max(0.0, timeout_s))
        return os.read(self._input, 32).decode(errors="replace") if ready else ""


def _exit_on_signal(number: int, frame: object) -> None:
    """Raise SystemExit, so that `__exit__` restores the terminal."""
    raise SystemExit(128 + number)
