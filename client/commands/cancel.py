"""`sluice cancel`: end jobs before their time, by id or all that match."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from client.commands.gateway_options import add_gateway, connect
from client.commands.job_filters import add_filters, filters_of, matching
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.table import Column
from client.terminal.text import plural

if TYPE_CHECKING:
    from client import Sluice

_OPEN = ("queued", "running")
COLUMNS = (
    Column("JOB", lambda row: row["job_id"]),
    Column("STATUS", lambda row: row["status"], status=True),
    Column("NOTE", lambda row: "its worker was asked to end it" if row.get("canceling") else ""),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Ends jobs: those that are named, or with --all-matching all that have not ended and fit "
        "the filters. Many are asked about first, unless -y says so. Exit code 66 where one of "
        "them is not there."
    )
    parser.add_argument("job_ids", nargs="*", metavar="ID")
    parser.add_argument("--all-matching", action="store_true", help="by the filters below")
    add_filters(parser)
    parser.add_argument("--reason", help="told in the job's events")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.of(arguments), connect(arguments)
    if arguments.all_matching == bool(arguments.job_ids):
        console.complain("sluice: name jobs, or give --all-matching")
        return Exit.USAGE
    job_ids = arguments.job_ids
    if arguments.all_matching:
        filters = filters_of(arguments)
        filters["status"] = [one for one in filters["status"] or _OPEN if one in _OPEN]
        if not filters["status"]:
            console.complain("sluice: what has ended cannot be canceled")
            return Exit.USAGE
        job_ids = [job.job_id for job in matching(sluice, filters)]
        if not job_ids:
            console.say("no such job")
            return Exit.OK
        if not console.confirm(f"cancel {plural(len(job_ids), 'job')}?", arguments.yes):
            console.complain("sluice: nothing was canceled; -y cancels without asking")
            return Exit.USAGE if not console.can_ask else Exit.FAILED
    return _cancel(console, sluice, job_ids, arguments.reason)


def _cancel(console: Console, sluice: Sluice, job_ids: list[str], reason: str | None) -> int:
    from client.errors import NotFound

    rows: list[dict[str, Any]] = []
    code = Exit.OK
    for number, job_id in enumerate(dict.fromkeys(job_ids)):
        console.progress.bar("canceling", number, len(job_ids))
        try:
            rows.append(dict(sluice.job(job_id).cancel(reason).raw))
        except NotFound:
            console.complain(f"sluice: there is no job {job_id}")
            code = Exit.MISSING
    if rows or not console.for_people:
        console.listing(COLUMNS, rows)
    return code
