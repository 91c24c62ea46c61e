"""The whole terminal: drawn anew again and again, and given back as it was."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import TracebackType

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


class FullScreen:
    """The other screen of a terminal, without a cursor; keys come one by one, unechoed."""

    def __enter__(self) -> FullScreen:
        self._input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._input)
        self._handlers = {
            number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)
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
        """Columns and rows, as they are now."""
        size = shutil.get_terminal_size()
        return size.columns, size.lines

    def draw(self, lines: Sequence[str]) -> None:
        """These lines, and nothing else; at once, so that nothing flickers."""
        _, rows = self.size
        text = f"{_REST_OF_LINE}\r\n".join(lines[:rows])
        sys.stdout.write(f"{_HOME}{text}{_REST_OF_LINE}{_REST_OF_SCREEN}")
        sys.stdout.flush()

    def key(self, timeout_s: float) -> str:
        """The next key; nothing where none is pressed in time."""
        ready, _, _ = select.select([self._input], [], [], max(0.0, timeout_s))
        return os.read(self._input, 32).decode(errors="replace") if ready else ""


def _end(number: int, frame: object) -> None:
    """So that the terminal is given back."""
    raise SystemExit(128 + number)
