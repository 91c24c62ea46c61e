"""Log throttling: of similar lines only the first few are written, the rest is counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Lines of one kind that are written per window.
MOST_ALIKE = 20
#: The same for lines about jobs: similar lines about different jobs are all worth keeping.
MOST_ABOUT_JOBS = 2000
WINDOW_S = 10.0
#: Kinds that are distinguished per window; all others count as one kind.
MOST_KINDS = 1000
#: Loggers that are not throttled: they write one line per request or audited action on purpose.
#: Frequent requests must not be able to hide a later one.
UNTHROTTLED_LOGGERS = (".access", ".audit_log")


@dataclass
class _MessageCount:
    first: logging.LogRecord
    written: int = 0
    suppressed: int = 0


class ThrottlingHandler(logging.Handler):
    """Passes the first few lines of each kind to a handler, then one line that counts the others.

    Lines are of one kind if they have the same logger and the same message template. A thread
    exists only while lines are being suppressed.
    """

    def __init__(
        self,
        target: logging.Handler,
        most: int = MOST_ALIKE,
        window_s: float = WINDOW_S,
        is_about_job: Callable[[logging.LogRecord], bool] = lambda record: False,
    ) -> None:
        super().__init__()
        #: The handler that writes the lines.
        self.target = target
        self._most = most
        self._window_s = window_s
        self._is_about_job = is_about_job
        self._seen: dict[tuple[str, str], _MessageCount] = {}
        self._window_ends = 0.0
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the line on, or count it."""
        if record.name.endswith(UNTHROTTLED_LOGGERS) or self._should_write(record):
            self.target.handle(record)

    def close(self) -> None:
        """Report the suppressed lines of the last window."""
        self.report_suppressed()
        super().close()

    def report_suppressed(self) -> None:
        """Log how many lines were suppressed, and start a new window."""
        self.acquire()
        try:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            for seen in self._seen.values():
                if seen.suppressed:
                    self.target.handle(self._summary(seen))
            self._seen.clear()
        finally:
            self.release()

    def _should_write(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now >= self._window_ends and self._timer is None:
            self._seen.clear()
            self._window_ends = now + self._window_s
        kind = (record.name, str(record.msg))
        if len(self._seen) >= MOST_KINDS and kind not in self._seen:
            kind = ("", "")
        seen = self._seen.get(kind)
        if seen is None:
            seen = self._seen[kind] = _MessageCount(record)
        if seen.written < self._most or (
            seen.written < MOST_ABOUT_JOBS and self._is_about_job(record)
        ):
            seen.written += 1
            return True
        seen.suppressed += 1
        if self._timer is None:
            self._timer = threading.Timer(max(self._window_ends - now, 0.0), self.report_suppressed)
            self._timer.daemon = True
            self._timer.start()
        return False

    def _summary(self, seen: _MessageCount) -> logging.LogRecord:
        first = seen.first
        text = f"{first.getMessage()} … {seen.suppressed} more like this in {self._window_s:.0f} s"
        place = (first.pathname, first.lineno)
        return logging.LogRecord(
            first.name, first.levelno, *place, "%s", (text,), None, first.funcName
        )
