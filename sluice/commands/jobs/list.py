"""`sluice ls`: list and search jobs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import (
    STATUSES,
    TASKS,
    add_gateway_option,
    add_limit_option,
    connect,
    point_in_time,
    seconds,
)
from sluice.commands.jobs.get import describe_error
from sluice.errors import ExitCode
from sluice.terminal.console import JSON, Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of, format_ago, format_duration

if TYPE_CHECKING:
    from sluice import JobSummary, Sluice

#: Jobs per request.
PAGE_SIZE = 200
#: Statuses of jobs that have not ended.
CANCELABLE = ("queued", "running")
#: Default interval of --watch in seconds.
EVERY_S = 2.0
_HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def add_filters(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--status", action="append", choices=STATUSES, help="filter by status; repeatable")
    add("--task", action="append", choices=TASKS, help="filter by task; repeatable")
    add(
        "-s",
        "--search",
        metavar="TEXT",
        help="search for the start of an id, or text in payload, result or error",
    )
    add(
        "--since",
        type=point_in_time,
        metavar="WHEN",
        help="created after: 10m, 2h, 2030-01-31T08:00:00Z",
    )
    add("--until", type=point_in_time, metavar="WHEN", help="created before; same formats")
    add("--tenant", help="filter by tenant (admin keys only)")


def filters_from(arguments: argparse.Namespace) -> dict[str, Any]:
    """The filters as keyword arguments of `Sluice.jobs`."""
    return {
        "status": arguments.status,
        "task": arguments.task,
        "q": arguments.search,
        "since": arguments.since,
        "until": arguments.until,
        "tenant": arguments.tenant,
    }


def matching_jobs(
    sluice: Sluice, filters: dict[str, Any], limit: int | None = None
) -> Iterator[JobSummary]:
    """Matching jobs, newest first; at most `limit`."""
    page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit)
    return islice(sluice.jobs(**filters, page_size=page_size), limit)


def _duration(job: Mapping[str, Any]) -> str:
    """The time until the end; empty while the job has not ended."""
    if job["status"] in CANCELABLE:
        return ""
    return format_duration(job["updated_ts"] - job["created_ts"])


COLUMNS = (
    Column("JOB", lambda job: job["job_id"]),
    Column("TASK", lambda job: job["task"]),
    Column("STATUS", lambda job: job["status"], status=True),
    Column("CREATED", lambda job: format_ago(job["created_ts"]), right=True),
    Column("TOOK", _duration, right=True),
    Column("ERROR", lambda job: describe_error(job.get("error"))),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List and search jobs, newest first."
    parser.epilog = """Examples:
  sluice ls --status error --since 1h
  sluice ls --search "invoice 4711" --all -o jsonl
  sluice ls --status running --watch --every 5s"""
    add_filters(parser)
    how_many = parser.add_mutually_exclusive_group()
    add_limit_option(how_many)
    how_many.add_argument("-a", "--all", action="store_true", help="no limit")
    parser.add_argument("--ids", action="store_true", help="print only the job ids, one per line")
    parser.add_argument("-w", "--watch", action="store_true", help="refresh the list until Ctrl-C")
    parser.add_argument(
        "--every",
        type=seconds,
        default=EVERY_S,
        metavar="TIME",
        help="interval of --watch (default: 2s)",
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console, sluice = Console.from_arguments(arguments), connect(arguments)
    if arguments.watch and console.output == JSON:
        console.error("sluice: --watch cannot be combined with -o json; use -o jsonl")
        return ExitCode.USAGE
    while True:
        if arguments.watch and console.is_terminal and console.is_table:
            sys.stdout.write(_HOME_AND_CLEAR)
        _show(console, sluice, arguments)
        if not arguments.watch:
            return ExitCode.OK
        time.sleep(max(0.2, arguments.every))


def _show(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> None:
    limit = None if arguments.all else arguments.limit
    jobs = matching_jobs(sluice, filters_from(arguments), limit)
    if arguments.ids:
        for job in jobs:
            console.print_line(job.job_id)
        return
    rows = []
    for job in jobs:
        if console.is_table or console.output == JSON:
            rows.append(dict(job.raw))
            console.progress.show(f"{count_of(len(rows), 'job')} so far")
        else:
            console.print_json(dict(job.raw))
    if console.output != "jsonl":
        console.print_rows(COLUMNS, rows, "no jobs match")
    if console.is_table and limit is not None and len(rows) == limit:
        console.info(f"only the first {limit} are shown; use -n N or --all for more")
