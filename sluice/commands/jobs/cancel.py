"""`sluice cancel`: cancel jobs by id, or all that match."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.commands.jobs.list import add_filters, filters_from, matching_jobs
from sluice.errors import ExitCode, NotFound
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of

if TYPE_CHECKING:
    from sluice import Sluice

_CANCELABLE = ("queued", "running")
COLUMNS = (
    Column("JOB", lambda row: row["job_id"]),
    Column("STATUS", lambda row: row["status"], status=True),
    Column("NOTE", lambda row: "its worker was asked to end it" if row.get("canceling") else ""),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Cancels the named jobs, or with --all-matching all that have not ended and match the "
        "filters, after a question unless -y is given. Exit code 66 if one of them does not exist."
    )
    parser.add_argument("job_ids", nargs="*", metavar="ID")
    parser.add_argument("--all-matching", action="store_true", help="by the filters below")
    add_filters(parser)
    parser.add_argument("--reason", help="recorded in the job's events")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.from_arguments(arguments), connect(arguments)
    if arguments.all_matching == bool(arguments.job_ids):
        console.error("sluice: name jobs, or give --all-matching")
        return ExitCode.USAGE
    job_ids = arguments.job_ids
    if arguments.all_matching:
        filters = filters_from(arguments)
        filters["status"] = [one for one in filters["status"] or _CANCELABLE if one in _CANCELABLE]
        if not filters["status"]:
            console.error("sluice: what has ended cannot be canceled")
            return ExitCode.USAGE
        job_ids = [job.job_id for job in matching_jobs(sluice, filters)]
        if not job_ids:
            console.info("no such job")
            return ExitCode.OK
        if not console.confirm(f"cancel {count_of(len(job_ids), 'job')}?", arguments.yes):
            return console.declined("sluice: nothing was canceled; -y cancels without asking")
    return _cancel(console, sluice, job_ids, arguments.reason)


def _cancel(console: Console, sluice: Sluice, job_ids: list[str], reason: str | None) -> int:
    rows: list[dict[str, Any]] = []
    code = ExitCode.OK
    for number, job_id in enumerate(dict.fromkeys(job_ids)):
        console.progress.show_bar("canceling", number, len(job_ids))
        try:
            rows.append(dict(sluice.job(job_id).cancel(reason).raw))
        except NotFound:
            console.error(f"sluice: there is no job {job_id}")
            code = ExitCode.NOT_FOUND
    if rows or not console.is_table:
        console.print_rows(COLUMNS, rows)
    return code
