"""`sluice trace`: show where a job's time went, from the times in its events."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of, format_duration, format_time

if TYPE_CHECKING:
    from sluice import Event

BAR_WIDTH = 30


class Hop(NamedTuple):
    """The time between two events of a job."""

    name: str
    at_ms: int
    took_ms: int
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Prints a line for each hop: waiting, each attempt until its first word, its words, its "
        "end. Waits until the job has ended."
    )
    parser.add_argument("job_id", metavar="ID")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.from_arguments(arguments)
    handle = connect(arguments).job(arguments.job_id)
    job = handle.get()
    events = list(handle.stream(say=console.info))
    hops = list(find_hops(job.created_ts, events))
    rows = [hop._asdict() for hop in hops]
    total = max(1, sum(hop.took_ms for hop in hops))
    columns = (
        Column("HOP", lambda row: row["name"]),
        Column("AT", lambda row: f"+{row['at_ms']} ms", right=True),
        Column("TOOK", lambda row: format_duration(row["took_ms"]), right=True),
        Column("", lambda row: "#" * round(BAR_WIDTH * row["took_ms"] / total) or "."),
        Column("", lambda row: row["note"] or " "),
    )
    if console.is_table:
        status, created = handle.get().status, format_time(job.created_ts)
        console.print_line(f"{job.job_id}  {job.task}  {status}  {created}")
    console.print_rows(columns, rows, "there are no events of it any more")
    return ExitCode.OK


def find_hops(created_ts: int, events: Iterable[Event]) -> Iterator[Hop]:
    """The hops from each event to the next; together they are the job's whole time."""
    last, pieces, name = created_ts, 0, "http → queue"
    has_words = False
    for event in events:
        if not event.ts:
            continue
        at, took = last - created_ts, max(0, event.ts - last)
        if event.type in ("queued", "scheduled"):
            yield Hop(name, at, took)
            name = "scheduled" if event.type == "scheduled" else "queue wait"
        elif event.type == "running":
            yield Hop(name, at, took)
            attempt = event.data.get("attempt", 1) if isinstance(event.data, dict) else 1
            name, has_words, pieces = f"attempt {attempt} → first word", False, 0
        elif event.text:
            pieces += 1
            if has_words:
                continue  # counted with the words
            yield Hop(name, at, took)
            name, has_words = "words", True
        elif event.type in ("retry", "released"):
            yield Hop(name, at, took, count_of(pieces, "piece") if has_words else event.type)
            name = "wait for the next attempt"
        elif event.terminal:
            yield Hop(name, at, took, count_of(pieces, "piece") if has_words else event.type)
        else:
            continue
        last = event.ts
