"""`sluice events`: print the events of a job as JSON lines."""

from __future__ import annotations

import argparse

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import (
    JSONL,
    TABLE,
    Console,
    add_format_option,
    add_quiet_option,
)
from sluice.terminal.text import format_time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the events of a job, one JSON object per line (-o table for a readable format), and "
        "follow the job until it ends. Always exits 0 when the job ends, with any status."
    )
    parser.epilog = """Examples:
  sluice events 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice events 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --type message -n 10
  sluice events 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --from 1760000000000-0 -o table"""
    parser.add_argument("job_id", metavar="ID")
    parser.add_argument(
        "--from", dest="after", metavar="EVENT_ID", help="print only events after this one"
    )
    parser.add_argument("-n", "--most", type=int, metavar="N", help="stop after N events")
    parser.add_argument(
        "--type", action="append", help="print only events of this type; repeatable"
    )
    add_format_option(parser, JSONL, TABLE)
    add_gateway_option(parser)
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from sluice.commands.jobs.watch import summarize

    console = Console.from_arguments(arguments)
    handle = connect(arguments).job(arguments.job_id)
    handle.get()
    shown = 0
    for event in handle.stream(arguments.after, notify=console.info):
        if arguments.type and event.type not in arguments.type:
            continue
        if console.is_table:
            console.print_line(
                f"{format_time(event.ts)}  {event.type:10}  {event.step:16}  "
                f"{summarize(event.data)}".rstrip()
            )
        else:
            console.print_json({"id": event.id, **event.raw})
        shown += 1
        if shown == arguments.most:
            break
    return ExitCode.OK
