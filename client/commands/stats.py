"""`sluice stats`: throughput, latency, backlog and the box, over time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.series import LINES, known, newest, values_of
from client.exits import Exit
from client.terminal.console import JSONL, Console, add_output
from client.terminal.spark import spark
from client.terminal.table import Column

RANGES = ("10m", "1h", "6h", "24h", "14d")
CURVE = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "How it went: for people a line a number with its curve, -o jsonl for one row of numbers a "
        "line, the oldest first."
    )
    parser.add_argument("range", nargs="?", choices=RANGES, default=RANGES[0])
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.of(arguments)
    stats = dict(connect(arguments).stats(arguments.range).raw)
    if console.output == JSONL:
        for row in points(stats):
            console.json(row)
    elif not console.for_people:
        console.json(stats)
    else:
        rows = list(_rows(stats))
        columns = (
            Column("", lambda row: row["title"]),
            Column("NOW", lambda row: row["now"], right=True),
            Column("MEAN", lambda row: row["mean"], right=True),
            Column("MOST", lambda row: row["most"], right=True),
            Column(f"LAST {arguments.range}", lambda row: row["curve"]),
        )
        console.listing(columns, rows, "no numbers yet: wait a second or two")
    return Exit.OK


def points(stats: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Columns as rows."""
    series = stats.get("series")
    if not isinstance(series, Mapping) or not all(isinstance(c, list) for c in series.values()):
        return
    for values in zip(*series.values()):
        yield dict(zip(series, values))


def _rows(stats: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for line in LINES:
        values = values_of(stats, line)
        there = known(values)
        if there:
            yield {
                "title": line.title,
                "now": line.say(newest(values)),
                "mean": line.say(sum(there) / len(there)),
                "most": line.say(max(there)),
                "curve": spark(values, CURVE),
            }
