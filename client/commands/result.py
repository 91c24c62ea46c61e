"""`sluice result`: what came of a job, and nothing else."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from client.commands.gateway_options import add_gateway, connect
from client.commands.words import duration_s
from client.exits import Exit
from client.terminal.console import Console, add_output

if TYPE_CHECKING:
    from client import Job


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
        "--timeout", type=duration_s, metavar="TIME", help="with --wait: not longer than this"
    )
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.of(arguments)
    handle = connect(arguments).job(arguments.job_id)
    if arguments.wait:
        from client.commands.waiting import wait_for

        job = wait_for(console, handle, arguments.timeout)
    else:
        job = handle.get()
    return print_result(console, job, text_only=arguments.text)


def print_result(console: Console, job: Job, *, text_only: bool) -> int:
    """The result on stdout, anything else on stderr; returns the exit code of such an end."""
    if not job.ended:
        console.complain(f"sluice: job {job.job_id} is {job.status}; --wait waits for its end")
        return Exit.TIMEOUT
    code = ending(console, job)
    if code == Exit.OK:
        text = job.result.get("text") if isinstance(job.result, dict) else None
        if text_only and isinstance(text, str):
            console.stream(text if text.endswith("\n") else f"{text}\n")
        elif text_only:
            console.complain(f"sluice: the result of job {job.job_id} has no text")
            return Exit.MISSING
        else:
            console.json(job.result)
    return code


def ending(console: Console, job: Job) -> int:
    """The exit code of a job's end; why it was a bad one is told."""
    if job.status == "done":
        return Exit.OK
    if job.status == "canceled":
        console.complain(f"sluice: job {job.job_id} was canceled")
        return Exit.CANCELED
    error = job.error or {}
    console.complain(
        f"sluice: job {job.job_id} failed: {error.get('kind', 'error')}: {error.get('message', '')}"
    )
    return Exit.FAILED
