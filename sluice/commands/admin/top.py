"""`sluice top`: live view of statistics, workers and the newest jobs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.commands.admin import stats as series
from sluice.commands.admin import worker
from sluice.commands.admin.queue import job_queue
from sluice.commands.arguments import add_gateway_option, connect, positive_int, seconds
from sluice.commands.jobs.list import COLUMNS as JOB_COLUMNS
from sluice.errors import ExitCode, NotAllowed, SluiceError
from sluice.terminal.console import JSONL, TABLE, Console, add_output_options
from sluice.terminal.render import BOLD, DIM, RED, YELLOW, Colors, sparkline, table_lines
from sluice.terminal.text import (
    count_of,
    format_bytes,
    format_duration,
    format_number,
    format_time,
    pad,
    printable,
    truncate,
)

if TYPE_CHECKING:
    from sluice import Sluice

EVERY_S, MIN_EVERY_S = 1.0, 0.2
MAX_JOBS = 50
HOLD, QUIT = " ", ("q", "Q", "\x03", "\x04")
TITLE_WIDTH, VALUE_WIDTH = 14, 12
#: The metrics shown as curves.
CURVES = (
    "done",
    "error",
    "e2e_p50_ms",
    "e2e_p95_ms",
    "depth",
    "completion_tokens_per_s",
    "workers_rss_bytes",
    "available_bytes",
    "temperature_c",
    "gpu_load",
)
_METRICS = {metric.column: metric for metric in series.METRICS}
WORKER_COLUMNS = worker.COLUMNS[:2] + worker.COLUMNS[3:6]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show statistics, curves, workers and the newest jobs, refreshed every second. Keys: space "
        "pauses the display, q quits. Without a terminal, or with -o jsonl, print one line per "
        "refresh."
    )
    parser.epilog = """Examples:
  sluice top
  sluice top --every 5s
  sluice top --plain -n 60 >> sluice.log"""
    add = parser.add_argument
    add(
        "--every",
        type=seconds,
        default=EVERY_S,
        metavar="TIME",
        help="refresh interval (default: 1s)",
    )
    add("-n", "--count", type=positive_int, metavar="N", help="exit after N refreshes")
    add("--plain", action="store_true", help="print lines even on a terminal")
    add_gateway_option(parser)
    add_output_options(parser, TABLE, JSONL)


def run(arguments: argparse.Namespace) -> int:
    console, sluice = Console.from_arguments(arguments), connect(arguments)
    every_s = max(MIN_EVERY_S, arguments.every)
    is_terminal = console.is_terminal and sys.stdin.isatty()
    if console.is_table and is_terminal and not arguments.plain:
        return _run_full_screen(console, sluice, every_s, arguments.count)
    return _run_lines(console, sluice, every_s, arguments.count)


def _run_lines(console: Console, sluice: Sluice, every_s: float, count: int | None) -> int:
    updates = 0
    while True:
        snapshot = take_snapshot(sluice, stats_only=True)
        if console.is_table:
            console.print_line(log_line(snapshot))
        else:
            console.print_json(snapshot.now)
        updates += 1
        if updates == count:
            return ExitCode.OK
        time.sleep(every_s)


def _run_full_screen(console: Console, sluice: Sluice, every_s: float, count: int | None) -> int:
    from sluice.terminal.screen import FullScreen

    snapshot = take_snapshot(sluice)  # fails before the screen is cleared if there is no gateway
    updates, held = 1, False
    with FullScreen() as screen:
        while True:
            columns, rows = screen.size
            screen.draw(screen_lines(snapshot, columns, rows, console.colors, held=held))
            if updates == count:
                return ExitCode.OK
            key = screen.key(every_s)
            if key in QUIT:
                return ExitCode.OK
            held = held != (key == HOLD)
            if held:
                continue
            try:
                snapshot = take_snapshot(sluice)
            except SluiceError as error:
                snapshot.problems = [f"{error}; retrying"]
            updates += 1


@dataclass
class Snapshot:
    """The data for one refresh. Parts that could not be read are empty."""

    url: str
    now_ms: float = 0
    stats: Mapping[str, Any] = field(default_factory=dict)
    queue: Mapping[str, Any] = field(default_factory=dict)
    workers: Sequence[Mapping[str, Any]] = ()
    jobs: Sequence[Mapping[str, Any]] = ()
    #: Why a part is missing or out of date.
    problems: list[str] = field(default_factory=list)

    @property
    def now(self) -> Mapping[str, Any]:
        now = self.stats.get("now")
        return now if isinstance(now, Mapping) else {}


def take_snapshot(sluice: Sluice, *, stats_only: bool = False) -> Snapshot:
    """Request all parts; parts that the API key may not read stay empty."""
    snapshot = Snapshot(sluice.url, time.time() * 1000)

    def fetch(part: str, request: Callable[[], Any], default: Any) -> Any:
        try:
            return request()
        except NotAllowed as error:
            snapshot.problems.append(f"no {part}: {error.detail or error}")
            return default

    snapshot.stats = fetch("statistics", lambda: sluice.stats("10m").raw, {})
    if stats_only:
        return snapshot
    snapshot.workers = fetch("workers", lambda: [each.raw for each in sluice.workers()], ())
    snapshot.queue = fetch("queue", lambda: job_queue(sluice.queues()), {})
    snapshot.jobs = fetch(
        "jobs", lambda: [job.raw for job in sluice.jobs_page(limit=MAX_JOBS).jobs], ()
    )
    return snapshot


def screen_lines(
    snapshot: Snapshot, columns: int, rows: int, colors: Colors, *, held: bool = False
) -> list[str]:

    def fit(text: str) -> str:
        return truncate(printable(text), columns)

    found = [_heading(snapshot, columns, colors, held)]
    found += [colors(fit(problem), RED) for problem in snapshot.problems]
    found += [fit(text) for text in _summary(snapshot.now)]
    if snapshot.queue.get("paused"):
        found.append(colors(fit(_paused(snapshot.queue)), YELLOW))
    found.append("")
    found += _curves(snapshot.stats, columns)
    left = rows - len(found)
    if snapshot.workers:
        workers = snapshot.workers[: max(1, left // 3)]
        found += ["", *table_lines(WORKER_COLUMNS, workers, colors, columns)]
    left = rows - len(found) - 2
    if snapshot.jobs and left > 1:
        found += ["", *table_lines(JOB_COLUMNS, snapshot.jobs[: left - 1], colors, columns)]
    return found[:rows]


def _heading(snapshot: Snapshot, columns: int, colors: Colors, held: bool) -> str:
    left = printable(f"sluice top  {snapshot.url}  {format_time(snapshot.now_ms)}")
    keys = "paused: space resumes  q quits" if held else "space pauses  q quits"
    gap = max(2, columns - len(left) - len(keys))
    return colors(truncate(left, columns), BOLD) + colors(
        truncate(" " * gap + keys, max(0, columns - len(left))), DIM
    )


def _summary(now: Mapping[str, Any]) -> Iterator[str]:
    if not now:
        return
    yield "   ".join(
        (
            f"running {_busy(now)} on {_workers(now)}",
            f"waiting {format_number(now.get('depth'))}",
            f"scheduled {format_number(now.get('scheduled'))}",
            f"oldest {format_duration(now.get('oldest_age_ms'))}",
            f"dead letters {format_number(now.get('dead_letters'))}",
        )
    )
    yield "   ".join(
        (
            f"accepted {format_number(now.get('accepted'))}/s",
            f"done {format_number(now.get('done'))}/s",
            f"failed {format_number(now.get('error'))}/s",
            f"p95 {format_duration(now.get('e2e_p95_ms'))}",
            f"tokens {format_number(now.get('completion_tokens_per_s'), 1)}/s",
            f"streams {format_number(now.get('sse_clients'))}",
            f"free {format_bytes(now.get('available_bytes'))}",
        )
    )


def _busy(now: Mapping[str, Any]) -> str:
    return f"{format_number(now.get('running'))}/{format_number(now.get('slots'))}"


def _workers(now: Mapping[str, Any]) -> str:
    workers = now.get("workers")
    return count_of(workers, "worker") if isinstance(workers, int) else "- workers"


def _paused(queue: Mapping[str, Any]) -> str:
    paused = queue.get("paused")
    why = paused.get("why") if isinstance(paused, Mapping) else None
    return f"the queue is paused{f': {why}' if why else ''}; resume it with `sluice queue resume`"


def _curves(stats: Mapping[str, Any], columns: int) -> Iterator[str]:
    width = columns - TITLE_WIDTH - VALUE_WIDTH - 4
    for name in CURVES:
        metric = _METRICS[name]
        values = series.metric_values(stats, metric)
        if not series.without_gaps(values):
            continue
        title = pad(metric.title, TITLE_WIDTH)
        value = pad(metric.format(series.latest(values)), VALUE_WIDTH, right=True)
        yield f"{title}  {value}  {sparkline(values[-width:] if width > 0 else (), width)}"


def log_line(snapshot: Snapshot) -> str:
    """The statistics on one line."""
    now = snapshot.now
    return "  ".join(
        (
            format_time(snapshot.now_ms),
            f"running {_busy(now)}",
            f"waiting {format_number(now.get('depth'))}",
            f"done {format_number(now.get('done'))}/s",
            f"failed {format_number(now.get('error'))}/s",
            f"p95 {format_duration(now.get('e2e_p95_ms'))}",
            f"dead letters {format_number(now.get('dead_letters'))}",
            f"workers {format_number(now.get('workers'))}",
        )
    )
