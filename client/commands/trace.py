"""`sluice trace`: where a job's time went, hop by hop, from the times in its events."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from client.commands.gateway_options import add_gateway, connect
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import clock, duration, plural

if TYPE_CHECKING:
    from client import Event

BAR = 30


class Hop(NamedTuple):
    """A stretch of a job's way."""

    name: str
    at_ms: int
    took_ms: int
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "A line for each hop: waiting, each attempt until its first word, its words, its end. Of a "
        "job that has not ended, it waits for that."
    )
    parser.add_argument("job_id", metavar="ID")
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.of(arguments)
    handle = connect(arguments).job(arguments.job_id)
    job = handle.get()
    events = list(handle.stream(say=console.say))
    found = list(hops(job.created_ts, events))
    rows = [hop._asdict() for hop in found]
    total = max(1, sum(hop.took_ms for hop in found))
    columns = (
        Column("HOP", lambda row: row["name"]),
        Column("AT", lambda row: f"+{row['at_ms']} ms", right=True),
        Column("TOOK", lambda row: duration(row["took_ms"]), right=True),
        Column("", lambda row: "#" * round(BAR * row["took_ms"] / total) or "."),
        Column("", lambda row: row["note"] or " "),
    )
    if console.for_people:
        console.line(f"{job.job_id}  {job.task}  {handle.get().status}  {clock(job.created_ts)}")
    console.listing(columns, rows, "there are no events of it any more")
    return Exit.OK


def hops(created_ts: int, events: Iterable[Event]) -> Iterator[Hop]:
    """What came between events; from one to the next, so that they add up to the whole."""
    last, pieces, name = created_ts, 0, "http → queue"
    spoke = False
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
            name, spoke, pieces = f"attempt {attempt} → first word", False, 0
        elif event.text:
            pieces += 1
            if spoke:
                continue  # counted with the words
            yield Hop(name, at, took)
            name, spoke = "words", True
        elif event.type in ("retry", "released"):
            yield Hop(name, at, took, plural(pieces, "piece") if spoke else event.type)
            name = "wait for the next attempt"
        elif event.terminal:
            yield Hop(name, at, took, plural(pieces, "piece") if spoke else event.type)
        else:
            continue
        last = event.ts
