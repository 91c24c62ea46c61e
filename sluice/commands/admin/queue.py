"""`sluice queue`: show, pause, resume and drain the queue."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import add_gateway_option, run_action, seconds
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of, format_ago, format_duration, format_number

if TYPE_CHECKING:
    from sluice import Sluice

POLL_S = 0.5
Row = Mapping[str, Any]


def _state(queue: Row) -> str:
    return "paused" if queue.get("paused") else "running"


_WAITING = Column("WAITING", lambda row: format_number(row.get("depth")), right=True)
_PENDING = Column("IN PROGRESS", lambda row: format_number(row.get("pending")), right=True)
_SCHEDULED = Column("SCHEDULED", lambda row: format_number(row.get("scheduled")), right=True)
_DEAD = Column("DEAD", lambda row: format_number(row.get("dead_letters")), right=True)
COLUMNS = (
    Column("QUEUE", lambda row: row.get("name")),
    Column("STATE", _state, status=True),
    _WAITING,
    _PENDING,
    Column("OLDEST", lambda row: format_duration(row.get("oldest_age_ms")), right=True),
    _SCHEDULED,
    _DEAD,
    Column("JOBS/S", lambda row: format_number(row.get("drain_rate_per_s"), 1), right=True),
)
PARTITION_COLUMNS = (
    Column("PARTITION", lambda row: row.get("partition")),
    Column("STATE", lambda row: "unavailable" if row.get("trouble") else "running", status=True),
    _WAITING,
    _PENDING,
    _SCHEDULED,
    _DEAD,
)
BULLMQ_COLUMNS = (
    Column("BULLMQ QUEUE", lambda row: row.get("name")),
    Column(
        "JOBS",
        lambda row: "  ".join(f"{name} {count}" for name, count in row.get("counts", {}).items()),
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice queue ls
  sluice queue depth
  sluice queue pause --why "database migration"
  sluice queue resume
  sluice queue drain --timeout 10m"""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    list_ = actions.add_parser("ls", help="list the job queue and the BullMQ queues")
    list_.set_defaults(work=_list)
    depth = actions.add_parser("depth", help="print the number of waiting jobs")
    depth.set_defaults(work=_depth)
    pause = actions.add_parser(
        "pause", help="pause a queue: running jobs continue, new ones are accepted and wait"
    )
    pause.add_argument("name", nargs="?", help="name of the queue (default: the job queue)")
    pause.add_argument("--why", help="reason, shown with the queue")
    pause.set_defaults(work=_pause)
    resume = actions.add_parser("resume", help="resume a paused queue")
    resume.add_argument("name", nargs="?", help="name of the queue (default: the job queue)")
    resume.set_defaults(work=_resume)
    drain = actions.add_parser(
        "drain",
        help="wait until no job is waiting or running",
        description="Wait until no job is waiting or running. Exit code 6 if that takes longer "
        "than --timeout.",
    )
    drain.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="maximum time to wait, such as 10m"
    )
    drain.set_defaults(work=_drain)
    for action in actions.choices.values():
        add_gateway_option(action)
        add_output_options(action)


def run(arguments: argparse.Namespace) -> int:
    return run_action(arguments)


def job_queue(response: Row) -> dict[str, Any]:
    queues = response.get("queues")
    first = queues[0] if isinstance(queues, list) and queues else None
    return dict(first) if isinstance(first, Mapping) else {}


def _list(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    response = sluice.queues()
    if console.output == "json":
        console.print_json(response)
        return ExitCode.OK
    queue, bullmq = job_queue(response), response.get("bullmq") or []
    if not console.is_table:
        for each in (queue, *bullmq):
            console.print_json(each)
        return ExitCode.OK
    console.print_rows(COLUMNS, [queue])
    paused = queue.get("paused")
    if isinstance(paused, Mapping):
        why = f": {paused['why']}" if paused.get("why") else ""
        console.info(f"paused {format_ago(paused.get('since_ms'))} by {paused.get('by')}{why}")
    partitions = queue.get("partitions")
    if isinstance(partitions, list):
        console.print_line("")
        console.print_rows(PARTITION_COLUMNS, partitions)
    if bullmq:
        console.print_line("")
        console.print_rows(BULLMQ_COLUMNS, bullmq)
    return ExitCode.OK


def _depth(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    depth = job_queue(sluice.queues()).get("depth")
    console.print_value(depth, {"depth": depth})
    return ExitCode.OK


def _pause(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    name = arguments.name or str(job_queue(sluice.queues()).get("name"))
    response = sluice.pause(name, arguments.why)
    if console.is_table:
        console.info(f"{name} is paused; new jobs wait until `sluice queue resume`")
    else:
        console.print_json(response)
    return ExitCode.OK


def _resume(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    name = arguments.name or str(job_queue(sluice.queues()).get("name"))
    response = sluice.resume(name)
    if console.is_table:
        console.info(f"{name} is resumed")
    else:
        console.print_json(response)
    return ExitCode.OK


def _drain(console: Console, sluice: Sluice, arguments: argparse.Namespace) -> int:
    deadline = None if arguments.timeout is None else time.monotonic() + arguments.timeout
    while True:
        queue = job_queue(sluice.queues())
        left = (queue.get("depth") or 0) + (queue.get("pending") or 0)
        if not left:
            console.progress.clear()
            if not console.is_table:
                console.print_json(queue)
            return ExitCode.OK
        if queue.get("paused") and not queue.get("pending"):
            console.error(
                "sluice: the queue is paused, so it cannot drain; run `sluice queue resume`"
            )
            return ExitCode.FAILED
        if deadline is not None and time.monotonic() >= deadline:
            console.error(f"sluice: timeout; {count_of(left, 'job')} left")
            return ExitCode.TIMEOUT
        console.progress.show(f"{count_of(left, 'job')} left")
        time.sleep(POLL_S)
