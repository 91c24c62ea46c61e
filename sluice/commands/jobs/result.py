"""`sluice result`: print the result of a job, and nothing else."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sluice.commands.arguments import add_gateway_option, connect, seconds
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options

if TYPE_CHECKING:
    from sluice import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Prints a job's result as JSON. Exit code 0: it is done; 1: it failed, and why is on "
        "stderr; 3: it was canceled; 6: it has not ended."
    )
    parser.add_argument("job_id", metavar="ID")
    parser.add_argument("--text", action="store_true", help="the result's text alone")
    parser.add_argument("--wait", action="store_true", help="until it has ended")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="with --wait: not longer than this"
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.from_arguments(arguments)
    handle = connect(arguments).job(arguments.job_id)
    if arguments.wait:
        from sluice.commands.jobs.watch import wait_for_job

        job = wait_for_job(console, handle, arguments.timeout)
    else:
        job = handle.get()
    return print_result(console, job, text_only=arguments.text)


def print_result(console: Console, job: Job, *, text_only: bool) -> int:
    """Print the result on stdout, any failure on stderr; returns the exit code."""
    if not job.ended:
        console.error(f"sluice: job {job.job_id} is {job.status}; --wait waits for its end")
        return ExitCode.TIMEOUT
    code = _report_end(console, job)
    if code == ExitCode.OK:
        text = job.result.get("text") if isinstance(job.result, dict) else None
        if text_only and isinstance(text, str):
            console.write(text if text.endswith("\n") else f"{text}\n")
        elif text_only:
            console.error(f"sluice: the result of job {job.job_id} has no text")
            return ExitCode.NOT_FOUND
        else:
            console.print_json(job.result)
    return code


def _report_end(console: Console, job: Job) -> int:
    """The exit code of an ended job; prints why it failed."""
    if job.status == "done":
        return ExitCode.OK
    if job.status == "canceled":
        console.error(f"sluice: job {job.job_id} was canceled")
        return ExitCode.CANCELED
    error = job.error or {}
    console.error(
        f"sluice: job {job.job_id} failed: {error.get('kind', 'error')}: {error.get('message', '')}"
    )
    return ExitCode.FAILED
