"""`sluice queue`: look at, pause, resume and drain the queue."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.words import duration_s
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import ago, duration, number, plural

if TYPE_CHECKING:
    from client import Sluice

LOOK_S = 0.5
Row = Mapping[str, Any]


def _state(queue: Row) -> str:
    return "paused" if queue.get("paused") else "running"


COLUMNS = (
    Column("QUEUE", lambda row: row.get("name")),
    Column("STATE", _state, status=True),
    Column("WAITING", lambda row: number(row.get("depth")), right=True),
    Column("WITH WORKERS", lambda row: number(row.get("pending")), right=True),
    Column("OLDEST", lambda row: duration(row.get("oldest_age_ms")), right=True),
    Column("SCHEDULED", lambda row: number(row.get("scheduled")), right=True),
    Column("DEAD", lambda row: number(row.get("dead_letters")), right=True),
    Column("JOBS/S", lambda row: number(row.get("drain_rate_per_s"), 1), right=True),
)
PARTITION_COLUMNS = (
    Column("PARTITION", lambda row: row.get("partition")),
    Column("STATE", lambda row: "away" if row.get("trouble") else "running", status=True),
    Column("WAITING", lambda row: number(row.get("depth")), right=True),
    Column("WITH WORKERS", lambda row: number(row.get("pending")), right=True),
    Column("SCHEDULED", lambda row: number(row.get("scheduled")), right=True),
    Column("DEAD", lambda row: number(row.get("dead_letters")), right=True),
)
BULLMQ_COLUMNS = (
    Column("BULLMQ QUEUE", lambda row: row.get("name")),
    Column(
        "JOBS",
        lambda row: "  ".join(f"{name} {count}" for name, count in row.get("counts", {}).items()),
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="the job queue, and BullMQ's")
    listing.set_defaults(work=_list)
    depth = actions.add_parser("depth", help="how many jobs wait: a number, for scripts")
    depth.set_defaults(work=_depth)
    pausing = actions.add_parser(
        "pause", help="workers take nothing new; what runs goes on, what comes waits"
    )
    pausing.add_argument("name", nargs="?", help="default: the job queue")
    pausing.add_argument("--why", help="for whoever wonders")
    pausing.set_defaults(work=_pause)
    resuming = actions.add_parser("resume", help="they take jobs again")
    resuming.add_argument("name", nargs="?", help="default: the job queue")
    resuming.set_defaults(work=_resume)
    draining = actions.add_parser(
        "drain",
        help="wait until nothing waits and nothing runs",
        description="Exit code 0: nothing waits and nothing runs; 6: not within --timeout.",
    )
    draining.add_argument("--timeout", type=duration_s, metavar="TIME", help="such as 10m")
    draining.set_defaults(work=_drain)
    for action in actions.choices.values():
        add_gateway(action)
        add_output(action)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    code: int = arguments.work(Console.of(arguments), connect(arguments), arguments)
    return code


def job_queue(told: Row) -> dict[str, Any]:
    """Sluice's own queue, of the gateway's answer."""
    queues = told.get("queues")
    first = queues[0] if isinstance(queues, list) and queues else None
    return dict(first) if isinstance(first, Mapping) else {}


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    told = sluice.queues()
    if console.output == "json":
        console.json(told)
        return Exit.OK
    queue, bullmq = job_queue(told), told.get("bullmq") or []
    if not console.for_people:
        for each in (queue, *bullmq):
            console.json(each)
        return Exit.OK
    console.listing(COLUMNS, [queue])
    paused = queue.get("paused")
    if isinstance(paused, Mapping):
        why = f": {paused['why']}" if paused.get("why") else ""
        console.say(f"paused {ago(paused.get('since_ms'))} by {paused.get('by')}{why}")
    partitions = queue.get("partitions")
    if isinstance(partitions, list):
        console.line("")
        console.listing(PARTITION_COLUMNS, partitions)
    if bullmq:
        console.line("")
        console.listing(BULLMQ_COLUMNS, bullmq)
    return Exit.OK


def _depth(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    depth = job_queue(sluice.queues()).get("depth")
    console.line(depth) if console.for_people else console.json({"depth": depth})
    return Exit.OK


def _pause(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    name = arguments.name or str(job_queue(sluice.queues()).get("name"))
    told = sluice.pause(name, arguments.why)
    if console.for_people:
        console.say(f"{name} is paused; jobs are accepted and wait: sluice queue resume")
    else:
        console.json(told)
    return Exit.OK


def _resume(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    name = arguments.name or str(job_queue(sluice.queues()).get("name"))
    told = sluice.resume(name)
    if console.for_people:
        console.say(f"{name} goes on")
    else:
        console.json(told)
    return Exit.OK


def _drain(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    until = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    while True:
        queue = job_queue(sluice.queues())
        left = (queue.get("depth") or 0) + (queue.get("pending") or 0)
        if not left:
            console.progress.clear()
            if not console.for_people:
                console.json(queue)
            return Exit.OK
        if queue.get("paused") and not queue.get("pending"):
            console.complain("sluice: the queue is paused, so nothing will move")
            return Exit.FAILED
        if until is not None and time.monotonic() >= until:
            console.complain(f"sluice: {plural(left, 'job')} left when the time was up")
            return Exit.TIMEOUT
        console.progress.show(f"{plural(left, 'job')} left")
        time.sleep(LOOK_S)
