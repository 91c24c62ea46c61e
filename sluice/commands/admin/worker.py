"""`sluice worker`: list workers and the jobs they run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import format_ago, format_bytes, format_duration, format_time

Row = Mapping[str, Any]


def state(worker: Row) -> str:
    if worker.get("draining"):
        return "draining"
    if worker.get("holding"):
        return f"holding: {worker.get('holding_why') or ''}".rstrip(": ")
    return "running" if worker.get("in_flight") else "idle"


COLUMNS = (
    Column("WORKER", lambda row: row.get("consumer")),
    Column("HOST", lambda row: row.get("host")),
    Column("VERSION", lambda row: row.get("version")),
    Column("JOBS", lambda row: f"{row.get('in_flight')}/{row.get('max_inflight')}", right=True),
    Column("STATE", state, status=True),
    Column("MEMORY", lambda row: format_bytes(row.get("rss_bytes")), right=True),
    Column(
        "UPTIME", lambda row: format_duration(time.time() * 1000 - (row.get("started_ms") or 0))
    ),
    Column("HEARTBEAT", lambda row: format_ago(row.get("seen_ms")), right=True),
    Column("TASKS", lambda row: ",".join(row.get("tasks") or ())),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice worker ls
  sluice worker show worker-1"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    list_ = actions.add_parser("ls", help="list the connected workers")
    list_.set_defaults(work=_list)
    show = actions.add_parser("show", help="show one worker and the jobs it runs")
    show.add_argument("name", metavar="WORKER")
    show.set_defaults(work=_show)
    for action in (list_, show):
        add_gateway_option(action)
        add_output_options(action)


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.work(Console.from_arguments(arguments), arguments)
    return code


def _workers(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    return [dict(worker.raw) for worker in connect(arguments).workers()]


def _list(console: Console, arguments: argparse.Namespace) -> int:
    console.print_rows(COLUMNS, _workers(arguments), "no workers connected; `sluice up` starts one")
    return ExitCode.OK


def _show(console: Console, arguments: argparse.Namespace) -> int:
    found = [each for each in _workers(arguments) if each.get("consumer") == arguments.name]
    if not found:
        console.error(f"sluice: no worker {arguments.name} is connected; see `sluice worker ls`")
        return ExitCode.NOT_FOUND
    worker = found[0]
    running = worker.get("running") or ()
    pairs: list[tuple[str, object]] = [
        ("worker", worker.get("consumer")),
        ("host", f"{worker.get('host')} (process {worker.get('pid')})"),
        ("version", worker.get("version")),
        ("started", format_time(worker.get("started_ms"))),
        ("heartbeat", format_ago(worker.get("seen_ms"))),
        ("state", state(worker)),
        ("jobs", f"{worker.get('in_flight')} of {worker.get('max_inflight')}"),
        ("memory", format_bytes(worker.get("rss_bytes"))),
        ("tasks", ", ".join(worker.get("tasks") or ())),
    ]
    pairs += [
        (
            "running",
            f"{job.get('job_id')}  {job.get('task')}  started {format_ago(job.get('since_ms'))}",
        )
        for job in running
    ]
    console.print_details(pairs, worker)
    return ExitCode.OK
