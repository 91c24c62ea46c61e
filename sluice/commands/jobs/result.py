"""`sluice result`: print the result of a job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sluice.commands.arguments import add_gateway_option, connect, seconds
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options

if TYPE_CHECKING:
    from sluice import Job


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the result of a job as JSON. Exit code 0: done; 1: failed, with the error on "
        "stderr; 3: canceled; 6: not ended yet."
    )
    parser.epilog = """Examples:
  sluice result 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice result 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --text
  sluice result 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --wait --timeout 10m"""
    parser.add_argument("job_id", metavar="ID")
    parser.add_argument("--text", action="store_true", help="print only the text of the result")
    parser.add_argument("--wait", action="store_true", help="wait until the job has ended")
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="maximum time of --wait")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    handle = connect(arguments).job(arguments.job_id)
    if arguments.wait:
        from sluice.commands.jobs.watch import wait_for_job

        job = wait_for_job(console, handle, arguments.timeout)
    else:
        job = handle.get()
    return print_result(console, job, text_only=arguments.text)


def print_result(console: Console, job: Job, *, text_only: bool) -> int:
    """Print the result on stdout or the error on stderr; returns the exit code."""
    if not job.ended:
        console.error(f"sluice: job {job.job_id} is {job.status}; use --wait to wait for it")
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
    """Print the error of a failed job; returns the exit code."""
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
