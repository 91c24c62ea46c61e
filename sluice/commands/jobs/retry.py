"""`sluice retry`: submit jobs again as new jobs."""

from __future__ import annotations

import argparse

from sluice.commands.arguments import PERSISTENT_RETRIES, add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column

COLUMNS = (
    Column("JOB", lambda row: row["job_id"]),
    Column("RETRY OF", lambda row: row["retry_of"]),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Submit the task and payload of each job again as a new job, and print the new ids. The "
        "old job may have any status; its other options, such as --ttl, are not copied."
    )
    parser.epilog = """Examples:
  sluice retry 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice retry 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --stream"""
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument(
        "--stream", action="store_true", help="follow the new jobs as `sluice watch` does"
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    sluice = connect(arguments, retries=PERSISTENT_RETRIES)
    old = [sluice.job(job_id).get() for job_id in dict.fromkeys(arguments.job_ids)]
    handles = []
    for job in old:
        if not isinstance(job.payload, dict):
            console.error(f"sluice: the payload of job {job.job_id} is not a JSON object")
            return ExitCode.FAILED
        handles.append(sluice.submit(job.task, job.payload))
    if arguments.stream:
        from sluice.commands.jobs.watch import JobFollower

        for handle in handles:
            console.info(handle.id)
        return JobFollower(console, handles).run()
    rows = [{"job_id": new.id, "retry_of": job.job_id} for new, job in zip(handles, old)]
    if console.is_table and not console.is_terminal:
        for row in rows:
            console.print_line(row["job_id"])
    else:
        console.print_rows(COLUMNS, rows)
    return ExitCode.OK
