"""`sluice events`: what happened to a job, event by event, for programs."""

from __future__ import annotations

import argparse

from client.commands.gateway_options import add_gateway, connect
from client.exits import Exit
from client.terminal.console import Console, add_quiet
from client.terminal.text import clock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "One event a line, as JSON (-o table for people), to the job's last one: of a job that has "
        "not ended it waits for more. Exit code 0 however the job ended."
    )
    parser.add_argument("job_id", metavar="ID")
    parser.add_argument(
        "--from", dest="after", metavar="EVENT_ID", help="only what came after this event"
    )
    parser.add_argument("-n", "--most", type=int, metavar="N", help="end after so many")
    parser.add_argument("--type", action="append", help="only of this type; may be repeated")
    parser.add_argument("-o", "--output", choices=("jsonl", "table"), default="jsonl")
    add_gateway(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from client.commands.following import words_of

    console = Console.of(arguments)
    handle = connect(arguments).job(arguments.job_id)
    handle.get()
    shown = 0
    for event in handle.stream(arguments.after, say=console.say):
        if arguments.type and event.type not in arguments.type:
            continue
        if console.for_people:
            console.line(
                f"{clock(event.ts)}  {event.type:10}  {event.step:16}  "
                f"{words_of(event.data)}".rstrip()
            )
        else:
            console.json({"id": event.id, **event.raw})
        shown += 1
        if shown == arguments.most:
            break
    return Exit.OK
