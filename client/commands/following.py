"""Jobs as they happen: the answer on stdout, how it goes on stderr, and what Ctrl-C means."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from client.exits import Exit
from client.terminal.console import Console
from client.terminal.text import as_json, cut, printable

if TYPE_CHECKING:
    from client import Event, JobHandle

_ENDS = {"done": Exit.OK, "error": Exit.FAILED, "canceled": Exit.CANCELED}
#: Of several jobs, whose line it is.
SHORT = 8
#: As much of an event's data as fits a line.
GLANCE = 200
BELL = "\a"


class _News(NamedTuple):
    """What came of one job: an event, its end, or a trouble."""

    job: str
    event: Event | None = None
    trouble: Exception | None = None


class Follower:
    """Follows one or more jobs to their ends; each over its own connection."""

    def __init__(
        self,
        console: Console,
        handles: Sequence[JobHandle],
        *,
        after: str | None = None,
        timeout_s: float | None = None,
        bell: bool = False,
    ) -> None:
        self._console = console
        self._handles = {handle.id: handle for handle in handles}
        self._after = after
        self._until = None if timeout_s is None else time.monotonic() + timeout_s
        self._bell = bell
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._open = set(self._handles)
        self._code = int(Exit.OK)
        self._shown = _Shown(console, several=len(self._handles) > 1)

    def run(self) -> int:
        """Until all have ended, or nobody wants to wait any more; returns the exit code."""
        for handle in self._handles.values():
            # Daemons: whoever leaves does not wait for a silent stream.
            threading.Thread(target=self._pump, args=(handle,), daemon=True).start()
        while self._open:
            try:
                self._take(self._news.get(timeout=self._left_s()))
            except queue.Empty:
                self._shown.finish()
                jobs = ", ".join(sorted(self._open))
                self._console.complain(f"sluice: not ended in time, and goes on: {jobs}")
                return Exit.TIMEOUT
            except KeyboardInterrupt:
                self._shown.finish()
                if not self._interrupted():
                    return Exit.INTERRUPTED
        if self._bell:
            self._console.stream(BELL) if self._console.terminal else None
        return self._code

    def _pump(self, handle: JobHandle) -> None:
        try:
            for event in handle.stream(self._after, say=self._console.say):
                self._news.put(_News(handle.id, event))
        except Exception as error:
            self._news.put(_News(handle.id, trouble=error))
        else:
            self._news.put(_News(handle.id))

    def _left_s(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def _take(self, news: _News) -> None:
        if news.trouble is not None:
            self._shown.finish()
            raise news.trouble
        if news.event is None:
            if news.job in self._open:  # it had ended before what we asked for
                self._ended(news.job, self._handles[news.job].get().status)
            return
        self._shown.event(news.job, news.event)
        if news.event.terminal:
            self._ended(news.job, news.event.type)
        elif news.event.type == "gone":
            self._open.discard(news.job)
            self._worse(Exit.MISSING)

    def _ended(self, job: str, status: str) -> None:
        self._open.discard(job)
        self._worse(_ENDS.get(status, Exit.FAILED))

    def _worse(self, code: int) -> None:
        """Of several jobs the first that did not end well decides."""
        self._code = self._code or int(code)

    def _interrupted(self) -> bool:
        """Ctrl-C: whether to stay, because the jobs are to be canceled."""
        console = self._console
        jobs = " ".join(sorted(self._open))
        if console.can_ask:
            what = "the job" if len(self._open) == 1 else f"{len(self._open)} jobs"
            try:
                if console.ask(f"cancel {what}? (Ctrl-C again: leave, and let it go on)"):
                    for job in sorted(self._open):
                        self._handles[job].cancel("Ctrl-C at the command line")
                    return True
            except KeyboardInterrupt:
                console.complain("")
        console.say(f"it goes on: sluice watch {jobs}")
        return False


class _Shown:
    """What one sees of events."""

    def __init__(self, console: Console, *, several: bool) -> None:
        self._console = console
        self._several = several
        #: Whether a line of the answer has begun.
        self._within = False
        self._place: tuple[object, object] | None = None
        self._began: dict[str, int] = {}

    def event(self, job: str, event: Event) -> None:
        """Show one."""
        if not self._console.for_people:
            self._console.json({"job_id": job, "id": event.id, **event.raw})
        elif self._several:
            words = event.text.strip() or words_of(event.data)
            line = f"{job[:SHORT]}  {event.type:10}  {words}"
            self._console.line(line.rstrip())
        elif event.text:
            self._piece(event)
        else:
            self._status(job, event)

    def finish(self) -> None:
        """The line of an answer ends, before something else is said."""
        if self._within:
            self._console.stream("\n")
            self._within = False

    def _piece(self, event: Event) -> None:
        data = event.data
        place = data.get("attempt"), data.get("round", 1)
        if self._place is not None and place != self._place:
            self.finish()
            self._console.say("the answer begins anew")
        self._place = place
        whole = "delta" not in data  # an echo's message is a line of its own
        self._console.stream(f"{event.text}\n" if whole else event.text)
        self._within = not whole and not event.text.endswith("\n")

    def _status(self, job: str, event: Event) -> None:
        data = event.data if isinstance(event.data, Mapping) else {}
        done, total = data.get("done"), data.get("total")
        if event.type == "progress" and isinstance(done, int) and isinstance(total, int):
            self._console.progress.bar("reading", done, total)
            return
        if event.type in ("reasoning", "usage"):
            return
        self.finish()
        words = f"{event.type}  {words_of(event.data)}".rstrip()
        if event.type == "error":
            self._console.complain(f"sluice: job {job} failed: {words_of(event.data)}")
        else:
            self._console.say(words)


def words_of(data: Any) -> str:
    """An event's data in one line."""
    if not isinstance(data, Mapping):
        return "" if data is None else cut(as_json(data), GLANCE)
    parts = []
    for name, value in data.items():
        text = printable(value) if isinstance(value, str) else as_json(value)
        parts.append(f"{name}={cut(text, GLANCE)}")
    return "  ".join(parts)
