"""`sluice watch`: follow jobs, with the answer on stdout and progress on stderr."""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.commands.arguments import add_gateway_option, connect, seconds
from sluice.errors import ExitCode, WaitTimeout
from sluice.terminal.console import JSONL, TABLE, Console, add_output_options
from sluice.terminal.text import as_json, count_of, format_duration, printable, truncate

if TYPE_CHECKING:
    from sluice import Event, Job, JobHandle

_EXIT_CODES = {"done": ExitCode.OK, "error": ExitCode.FAILED, "canceled": ExitCode.CANCELED}
#: Length of the job id prefix on each line when several jobs are watched.
ID_CHARS = 8
#: Maximum length of a value of an event in the output.
SUMMARY_CHARS = 200
BELL = "\a"
#: Seconds between progress updates of a wait.
PROGRESS_EVERY_S = 2.0


class _Update(NamedTuple):
    """An update of one job: an event, an error, or (with neither) the end of its stream."""

    job_id: str
    event: Event | None = None
    error: Exception | None = None


class JobFollower:
    """Follows one or more jobs until they end, each over its own connection."""

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
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._bell = bell
        self._updates: queue.SimpleQueue[_Update] = queue.SimpleQueue()
        self._open = set(self._handles)
        self._code = int(ExitCode.OK)
        self._printer = _EventPrinter(console, several=len(self._handles) > 1)

    def run(self) -> int:
        """Follow until all jobs have ended, the timeout, or Ctrl-C; returns the exit code."""
        for handle in self._handles.values():
            # Daemon threads: the process does not wait for open streams when it exits.
            threading.Thread(target=self._pump, args=(handle,), daemon=True).start()
        while self._open:
            try:
                self._handle_update(self._updates.get(timeout=self._left_s()))
            except queue.Empty:
                self._printer.end_line()
                jobs = ", ".join(sorted(self._open))
                self._console.error(f"sluice: timeout; still running: {jobs}")
                return ExitCode.TIMEOUT
            except KeyboardInterrupt:
                self._printer.end_line()
                if not self._stay_after_interrupt():
                    return ExitCode.INTERRUPTED
        if self._bell and self._console.is_terminal:
            self._console.write(BELL)
        return self._code

    def _pump(self, handle: JobHandle) -> None:
        try:
            for event in handle.stream(self._after, notify=self._console.info):
                self._updates.put(_Update(handle.id, event))
        except Exception as error:
            self._updates.put(_Update(handle.id, error=error))
        else:
            self._updates.put(_Update(handle.id))

    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _handle_update(self, update: _Update) -> None:
        job_id, event = update.job_id, update.event
        if update.error is not None:
            self._printer.end_line()
            raise update.error
        if event is None:
            if job_id in self._open:  # the job ended before the event given with --from
                self._close(job_id, _exit_code(self._handles[job_id].get().status))
            return
        self._printer.print_event(job_id, event)
        if event.terminal:
            self._close(job_id, _exit_code(event.type))
        elif event.type == "gone":
            self._close(job_id, ExitCode.NOT_FOUND)

    def _close(self, job_id: str, code: int) -> None:
        """Mark a job as ended. The first job that did not succeed decides the exit code."""
        self._open.discard(job_id)
        self._code = self._code or int(code)

    def _stay_after_interrupt(self) -> bool:
        """Handle Ctrl-C; returns True to keep following, because the user cancels the jobs."""
        console = self._console
        jobs = " ".join(sorted(self._open))
        if console.is_interactive:
            what = "the job" if len(self._open) == 1 else count_of(len(self._open), "job")
            try:
                if console.ask(f"cancel {what}? (Ctrl-C again: exit without canceling)"):
                    for job_id in sorted(self._open):
                        self._handles[job_id].cancel("Ctrl-C at the command line")
                    return True
            except KeyboardInterrupt:
                console.error("")
        console.info(f"still running; to follow again: sluice watch {jobs}")
        return False


def _exit_code(status: str) -> int:
    return _EXIT_CODES.get(status, ExitCode.FAILED)


class _EventPrinter:
    """Prints events: text on stdout, everything else on stderr."""

    def __init__(self, console: Console, *, several: bool) -> None:
        self._console = console
        self._several = several
        #: True while the last line of the answer is unfinished.
        self._in_line = False
        self._attempt_and_round: tuple[object, object] | None = None

    def print_event(self, job_id: str, event: Event) -> None:
        if not self._console.is_table:
            self._console.print_json({"job_id": job_id, "id": event.id, **event.raw})
        elif self._several:
            words = event.text.strip() or summarize(event.data)
            line = f"{job_id[:ID_CHARS]}  {event.type:10}  {words}"
            self._console.print_line(line.rstrip())
        elif event.text:
            self._print_text(event)
        else:
            self._print_status(job_id, event)

    def end_line(self) -> None:
        """Finish the current line of the answer before other output."""
        if self._in_line:
            self._console.write("\n")
            self._in_line = False

    def _print_text(self, event: Event) -> None:
        data = event.data
        current = data.get("attempt"), data.get("round", 1)
        if self._attempt_and_round is not None and current != self._attempt_and_round:
            self.end_line()
            self._console.info("the answer starts again")
        self._attempt_and_round = current
        is_whole = "delta" not in data  # messages of the echo worker are complete lines
        self._console.write(f"{event.text}\n" if is_whole else event.text)
        self._in_line = not is_whole and not event.text.endswith("\n")

    def _print_status(self, job_id: str, event: Event) -> None:
        data = event.data if isinstance(event.data, Mapping) else {}
        done, total = data.get("done"), data.get("total")
        if event.type == "progress" and isinstance(done, int) and isinstance(total, int):
            self._console.progress.show_bar("reading", done, total)
            return
        if event.type in ("reasoning", "usage"):
            return
        self.end_line()
        summary = summarize(event.data)
        if event.type == "error":
            self._console.error(f"sluice: job {job_id} failed: {summary}")
        else:
            self._console.info(f"{event.type}  {summary}".rstrip())


def summarize(data: Any) -> str:
    """The data of an event on one line."""
    if not isinstance(data, Mapping):
        return "" if data is None else truncate(as_json(data), SUMMARY_CHARS)
    parts = []
    for name, value in data.items():
        text = printable(value) if isinstance(value, str) else as_json(value)
        parts.append(f"{name}={truncate(text, SUMMARY_CHARS)}")
    return "  ".join(parts)


def wait_for_job(console: Console, handle: JobHandle, timeout_s: float | None) -> Job:
    """Wait until the job has ended, with progress on stderr; raises WaitTimeout."""
    started = time.monotonic()
    try:
        while True:
            left_s = None if timeout_s is None else started + timeout_s - time.monotonic()
            is_last = left_s is not None and left_s <= PROGRESS_EVERY_S
            try:
                return handle.wait(max(0.0, left_s or 0.0) if is_last else PROGRESS_EVERY_S)
            except WaitTimeout:
                if is_last:
                    raise WaitTimeout(
                        f"job {handle.id} did not end within {timeout_s:g} s; it keeps running"
                    ) from None
                waited = format_duration((time.monotonic() - started) * 1000)
                console.progress.show(f"{handle.get().status} for {waited} …")
    except KeyboardInterrupt:
        console.info(f"the job keeps running; to follow it: sluice watch {handle.id}")
        raise
    finally:
        console.progress.clear()


_DESCRIPTION = """Follow a job until it ends, with its answer on stdout and progress on stderr. With
several jobs, print one line per event. Reconnects after dropped connections and gateway restarts.
Ctrl-C asks whether to cancel the job; a second Ctrl-C exits and leaves it running. Exit code: 0
done, 1 failed, 3 canceled, 6 not ended within --timeout; with several jobs, that of the first one
that did not succeed."""
_EXAMPLES = """Examples:
  sluice watch 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice watch 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --timeout 10m --bell
  sluice watch $(sluice ls --status running --ids)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument(
        "--from", dest="after", metavar="EVENT_ID", help="print only events after this one"
    )
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="maximum time to follow, such as 10m"
    )
    parser.add_argument(
        "--bell", action="store_true", help="ring the terminal bell when all jobs have ended"
    )
    add_gateway_option(parser)
    add_output_options(parser, TABLE, JSONL)


def run(arguments: argparse.Namespace) -> int:
    sluice = connect(arguments)
    handles = [sluice.job(job_id) for job_id in dict.fromkeys(arguments.job_ids)]
    for handle in handles:
        handle.get()  # report an unknown id before any output
    follower = JobFollower(
        Console.from_arguments(arguments),
        handles,
        after=arguments.after,
        timeout_s=arguments.timeout,
        bell=arguments.bell,
    )
    return follower.run()
