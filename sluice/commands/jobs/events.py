"""`sluice events`: print the events of a job, for programs."""

from __future__ import annotations

import argparse

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_quiet_option
from sluice.terminal.text import format_time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Prints one event a line, as JSON (-o table for people), to the job's last one; waits for "
        "more while the job has not ended. Exit code 0 however the job ended."
    )
    parser.add_argument("job_id", metavar="ID")
    parser.add_argument(
        "--from", dest="after", metavar="EVENT_ID", help="only what came after this event"
    )
    parser.add_argument("-n", "--most", type=int, metavar="N", help="end after so many")
    parser.add_argument("--type", action="append", help="only of this type; may be repeated")
    parser.add_argument("-o", "--output", choices=("jsonl", "table"), default="jsonl")
    add_gateway_option(parser)
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from sluice.commands.jobs.watch import summarize

    console = Console.from_arguments(arguments)
    handle = connect(arguments).job(arguments.job_id)
    handle.get()
    shown = 0
    for event in handle.stream(arguments.after, say=console.info):
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
