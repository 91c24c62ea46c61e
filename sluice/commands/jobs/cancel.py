"""`sluice cancel`: cancel jobs by id, or all that match a filter."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.commands.jobs.list import CANCELABLE, add_filters, filters_from, matching_jobs
from sluice.errors import ExitCode, NotFound
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column
from sluice.terminal.text import count_of

if TYPE_CHECKING:
    from sluice import Sluice


def _note(row: dict[str, Any]) -> str:
    if row.get("canceling"):
        return "the worker was asked to stop it"
    return "had already ended" if row["status"] in ("done", "error") else ""


COLUMNS = (
    Column("JOB", lambda row: row["job_id"]),
    Column("STATUS", lambda row: row["status"], status=True),
    Column("NOTE", _note),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Cancel jobs by id, or with --all-matching all queued and running jobs that match the "
        "filters. Asks for confirmation before canceling by filter, unless -y is given. Exit code "
        "66 if a job does not exist."
    )
    parser.epilog = """Examples:
  sluice cancel 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --reason "wrong input"
  sluice cancel --all-matching --task chat --since 1h
  sluice cancel --all-matching --status queued -y"""
    parser.add_argument("job_ids", nargs="*", metavar="ID")
    parser.add_argument(
        "--all-matching", action="store_true", help="cancel all jobs that match the filters below"
    )
    add_filters(parser)
    parser.add_argument("--reason", help="reason, recorded in the events of the job")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console, sluice = Console.from_arguments(arguments), connect(arguments)
    if arguments.all_matching == bool(arguments.job_ids):
        console.error("sluice: pass either job ids or --all-matching")
        return ExitCode.USAGE
    job_ids = arguments.job_ids
    if arguments.all_matching:
        filters = filters_from(arguments)
        filters["status"] = [one for one in filters["status"] or CANCELABLE if one in CANCELABLE]
        if not filters["status"]:
            console.error("sluice: ended jobs cannot be canceled; use --status queued or running")
            return ExitCode.USAGE
        job_ids = [job.job_id for job in matching_jobs(sluice, filters)]
        if not job_ids:
            console.info("no jobs match")
            return ExitCode.OK
        if not console.confirm(f"cancel {count_of(len(job_ids), 'job')}?", arguments.yes):
            return console.declined("sluice: nothing canceled; use -y to skip the confirmation")
    return _cancel(console, sluice, job_ids, arguments.reason)


def _cancel(console: Console, sluice: Sluice, job_ids: list[str], reason: str | None) -> int:
    rows: list[dict[str, Any]] = []
    code = ExitCode.OK
    for number, job_id in enumerate(dict.fromkeys(job_ids)):
        console.progress.show_bar("canceling", number, len(job_ids))
        try:
            rows.append(dict(sluice.job(job_id).cancel(reason).raw))
        except NotFound:
            console.error(f"sluice: no job {job_id}; it may have expired")
            code = ExitCode.NOT_FOUND
    if rows or not console.is_table:
        console.print_rows(COLUMNS, rows)
    return code
