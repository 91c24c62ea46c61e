"""`sluice retry`: the same once more, as a new job."""

from __future__ import annotations

import argparse

from client.commands.gateway_options import STUBBORN, add_gateway, connect
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column

COLUMNS = (
    Column("JOB", lambda row: row["job_id"]),
    Column("AGAIN", lambda row: row["retry_of"]),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Hands in a job's task and payload as a new job, whatever became of the old one; its other "
        "wishes (--ttl and so on) are not remembered. Alone on stdout: the new ids."
    )
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument("--stream", action="store_true", help="follow them, as `sluice watch` does")
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.of(arguments), connect(arguments, retries=STUBBORN)
    old = [sluice.job(job_id).get() for job_id in dict.fromkeys(arguments.job_ids)]
    handles = []
    for job in old:
        if not isinstance(job.payload, dict):
            console.complain(f"sluice: the payload of job {job.job_id} is no JSON object")
            return Exit.FAILED
        handles.append(sluice.submit(job.task, job.payload))
    if arguments.stream:
        from client.commands.following import Follower

        for handle in handles:
            console.say(handle.id)
        return Follower(console, handles).run()
    rows = [{"job_id": new.id, "retry_of": job.job_id} for new, job in zip(handles, old)]
    if console.for_people and not console.terminal:
        for row in rows:
            console.line(row["job_id"])
    else:
        console.listing(COLUMNS, rows)
    return Exit.OK
