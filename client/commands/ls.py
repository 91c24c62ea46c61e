"""`sluice ls`: list and search jobs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.job_filters import add_filters, filters_of, matching
from client.commands.words import duration_s, natural
from client.exits import Exit
from client.terminal.console import JSON, Console, add_output
from client.terminal.table import Column
from client.terminal.text import ago, duration

if TYPE_CHECKING:
    from client import Sluice

USUAL, EVERY_S = 50, 2.0
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def _took(job: Mapping[str, Any]) -> str:
    return duration(job["updated_ts"] - job["created_ts"])


def _error(job: Mapping[str, Any]) -> str:
    error = job.get("error")
    if not isinstance(error, Mapping):
        return ""
    return f"{error.get('kind', '')}: {error.get('message', '')}"


COLUMNS = (
    Column("JOB", lambda job: job["job_id"]),
    Column("TASK", lambda job: job["task"]),
    Column("STATUS", lambda job: job["status"], status=True),
    Column("CREATED", lambda job: ago(job["created_ts"]), right=True),
    Column("TOOK", _took, right=True),
    Column("ERROR", _error),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = "Lists jobs, the newest first."
    add_filters(parser)
    many = parser.add_mutually_exclusive_group()
    many.add_argument(
        "-n", "--limit", type=natural, default=USUAL, metavar="N", help=f"at most so many ({USUAL})"
    )
    many.add_argument("-a", "--all", action="store_true", help="all of them")
    parser.add_argument("--ids", action="store_true", help="their ids alone, one a line")
    parser.add_argument(
        "-w", "--watch", action="store_true", help="look again and again, until Ctrl-C"
    )
    parser.add_argument(
        "--every", type=duration_s, default=EVERY_S, metavar="TIME", help="with --watch (2s)"
    )
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.of(arguments), connect(arguments)
    if arguments.watch and console.output == JSON:
        console.complain("sluice: one JSON document has no end with --watch; use -o jsonl")
        return Exit.USAGE
    while True:
        if arguments.watch and console.terminal and console.for_people:
            sys.stdout.write(_HOME_AND_CLEAR)
        _show(console, sluice, arguments)
        if not arguments.watch:
            return Exit.OK
        time.sleep(max(0.2, arguments.every))


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> None:
    most = None if arguments.all else arguments.limit
    jobs = matching(sluice, filters_of(arguments), most)
    if arguments.ids:
        for job in jobs:
            console.line(job.job_id)
        return
    rows = []
    for job in jobs:
        if console.for_people or console.output == JSON:
            rows.append(dict(job.raw))
            console.progress.show(f"{len(rows)} jobs so far")
        else:
            console.json(dict(job.raw))
    if console.output != "jsonl":
        console.listing(COLUMNS, rows, "no such job")
    if console.for_people and most is not None and len(rows) == most:
        console.say(f"there may be more than {most}: -n N, or --all")
