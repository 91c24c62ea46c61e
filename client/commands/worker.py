"""`sluice worker`: who works, and on what."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from client.commands.gateway_options import add_gateway, connect
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import ago, clock, duration, size

Row = Mapping[str, Any]


def state(worker: Row) -> str:
    """What it does, in a word or two."""
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
    Column("MEMORY", lambda row: size(row.get("rss_bytes")), right=True),
    Column("UP", lambda row: duration(time.time() * 1000 - (row.get("started_ms") or 0))),
    Column("HEARD", lambda row: ago(row.get("seen_ms")), right=True),
    Column("TASKS", lambda row: ",".join(row.get("tasks") or ())),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="all who live")
    listing.set_defaults(work=_list)
    showing = actions.add_parser("show", help="what one last said of itself")
    showing.add_argument("name", metavar="WORKER")
    showing.set_defaults(work=_show)
    for action in (listing, showing):
        add_gateway(action)
        add_output(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    code: int = arguments.work(Console.of(arguments), arguments)
    return code


def _workers(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    return [dict(worker.raw) for worker in connect(arguments).workers()]


def _list(console: Console, arguments: argparse.Namespace) -> int:
    console.listing(COLUMNS, _workers(arguments), "no worker lives; `sluice up` starts one")
    return Exit.OK


def _show(console: Console, arguments: argparse.Namespace) -> int:
    found = [each for each in _workers(arguments) if each.get("consumer") == arguments.name]
    if not found:
        console.complain(f"sluice: no worker {arguments.name} lives; see `sluice worker ls`")
        return Exit.MISSING
    worker = found[0]
    running = worker.get("running") or ()
    pairs: list[tuple[str, object]] = [
        ("worker", worker.get("consumer")),
        ("host", f"{worker.get('host')} (process {worker.get('pid')})"),
        ("version", worker.get("version")),
        ("since", clock(worker.get("started_ms"))),
        ("heard", ago(worker.get("seen_ms"))),
        ("state", state(worker)),
        ("jobs", f"{worker.get('in_flight')} of {worker.get('max_inflight')}"),
        ("memory", size(worker.get("rss_bytes"))),
        ("tasks", ", ".join(worker.get("tasks") or ())),
    ]
    pairs += [
        ("runs", f"{job.get('job_id')}  {job.get('task')}  since {ago(job.get('since_ms'))}")
        for job in running
    ]
    console.facts(pairs, worker)
    return Exit.OK
