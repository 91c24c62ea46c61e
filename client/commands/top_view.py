"""What `sluice top` draws, as lines of text; no terminal is needed for that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.commands import ls, series, worker
from client.terminal import table
from client.terminal.paint import BOLD, DIM, RED, YELLOW, Paint
from client.terminal.spark import spark
from client.terminal.text import clock, cut, duration, number, padded, printable, size

TITLE, VALUE = 14, 12
#: Curves, by the column of the numbers.
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
_LINES = {line.column: line for line in series.LINES}
WORKERS, JOBS = worker.COLUMNS[:2] + worker.COLUMNS[3:6], ls.COLUMNS


@dataclass
class View:
    """All that is known; what was not answered is empty."""

    url: str
    now_ms: float = 0
    stats: Mapping[str, Any] = field(default_factory=dict)
    queue: Mapping[str, Any] = field(default_factory=dict)
    workers: Sequence[Mapping[str, Any]] = ()
    jobs: Sequence[Mapping[str, Any]] = ()
    #: Why something is missing, or old.
    troubles: list[str] = field(default_factory=list)

    @property
    def now(self) -> Mapping[str, Any]:
        """The newest numbers."""
        told = self.stats.get("now")
        return told if isinstance(told, Mapping) else {}


def lines(view: View, columns: int, rows: int, paint: Paint, *, held: bool = False) -> list[str]:
    """The whole screen."""
    found = [_head(view, columns, paint, held)]
    found += [paint(cut(printable(trouble), columns), RED) for trouble in view.troubles]
    found += [cut(printable(text), columns) for text in _summary(view)]
    if view.queue.get("paused"):
        found.append(paint(cut(printable(_paused(view.queue)), columns), YELLOW))
    found.append("")
    found += _curves(view, columns)
    left = rows - len(found)
    if view.workers:
        found += ["", *table.lines(WORKERS, view.workers[: max(1, left // 3)], paint, columns)]
    left = rows - len(found) - 2
    if view.jobs and left > 1:
        found += ["", *table.lines(JOBS, view.jobs[: left - 1], paint, columns)]
    return found[:rows]


def _head(view: View, columns: int, paint: Paint, held: bool) -> str:
    left = printable(f"sluice top  {view.url}  {clock(view.now_ms)}")
    keys = "held: space goes on  q quits" if held else "space holds  q quits"
    gap = max(2, columns - len(left) - len(keys))
    return paint(cut(left, columns), BOLD) + paint(
        cut(" " * gap + keys, max(0, columns - len(left))), DIM
    )


def _summary(view: View) -> Iterator[str]:
    now = view.now
    if not now:
        return
    busy = f"{number(now.get('running'))}/{number(now.get('slots'))}"
    yield (
        f"running {busy} on {number(now.get('workers'))} workers   "
        f"waiting {number(now.get('depth'))}   scheduled {number(now.get('scheduled'))}   "
        f"oldest {duration(now.get('oldest_age_ms'))}   "
        f"dead letters {number(now.get('dead_letters'))}"
    )
    yield (
        f"accepted {number(now.get('accepted'))}/s   done {number(now.get('done'))}/s   "
        f"failed {number(now.get('error'))}/s   p95 {duration(now.get('e2e_p95_ms'))}   "
        f"tokens {number(now.get('completion_tokens_per_s'), 1)}/s   "
        f"streams {number(now.get('sse_clients'))}   free {size(now.get('available_bytes'))}"
    )


def _paused(queue: Mapping[str, Any]) -> str:
    paused = queue.get("paused")
    why = paused.get("why") if isinstance(paused, Mapping) else None
    return f"the queue is paused{f': {why}' if why else ''}; sluice queue resume"


def _curves(view: View, columns: int) -> Iterator[str]:
    room = columns - TITLE - VALUE - 4
    for name in CURVES:
        line = _LINES[name]
        values = series.values_of(view.stats, line)
        if not series.known(values):
            continue
        value = line.say(series.newest(values))
        yield f"{padded(line.title, TITLE)}  {padded(value, VALUE, right=True)}  " + spark(
            values[-room:] if room > 0 else (), room
        )


def plain(view: View) -> str:
    """The same in one line, for a log."""
    now = view.now
    return (
        f"{clock(view.now_ms)}  running {number(now.get('running'))}/{number(now.get('slots'))}"
        f"  waiting {number(now.get('depth'))}  done {number(now.get('done'))}/s"
        f"  failed {number(now.get('error'))}/s  p95 {duration(now.get('e2e_p95_ms'))}"
        f"  dead letters {number(now.get('dead_letters'))}  workers {number(now.get('workers'))}"
    )
