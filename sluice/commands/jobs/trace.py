"""`sluice trace`: show how long each phase of a job took, from the timestamps of its events."""

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
    """A phase of a job: the time between two of its events."""

    name: str
    at_ms: int
    took_ms: int
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show how long each phase of a job took: waiting in the queue, each attempt until its "
        "first output, and the output until its end. Waits until the job has ended."
    )
    parser.epilog = """Examples:
  sluice trace 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice trace 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 -o jsonl"""
    parser.add_argument("job_id", metavar="ID")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    handle = connect(arguments).job(arguments.job_id)
    job = handle.get()
    events = list(handle.stream(notify=console.info))
    hops = list(find_hops(job.created_ts, events))
    rows = [hop._asdict() for hop in hops]
    total = max(1, sum(hop.took_ms for hop in hops))
    columns = (
        Column("PHASE", lambda row: row["name"]),
        Column("AT", lambda row: f"+{row['at_ms']} ms", right=True),
        Column("TOOK", lambda row: format_duration(row["took_ms"]), right=True),
        Column("", lambda row: "#" * round(BAR_WIDTH * row["took_ms"] / total) or "."),
        Column("", lambda row: row["note"] or " "),
    )
    if console.is_table:
        status, created = handle.get().status, format_time(job.created_ts)
        console.print_line(f"{job.job_id}  {job.task}  {status}  {created}")
    console.print_rows(columns, rows, "the events of this job have expired")
    return ExitCode.OK


def find_hops(created_ts: int, events: Iterable[Event]) -> Iterator[Hop]:
    """The phases between the events of a job; they add up to its whole run time."""
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
                continue  # part of the phase "words"
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
