"""`sluice submit`: submit a job, and follow it if asked to."""

from __future__ import annotations

import argparse
from typing import Any

from sluice.commands.arguments import (
    PERSISTENT_RETRIES,
    TASKS,
    add_gateway_option,
    connect,
    positive_int,
    read_payload,
    seconds,
)
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options

_DESCRIPTION = """Submits a job and prints its id, in a pipe nothing else. With --stream, prints the
answer as it comes; with --wait, the result when it is there. Both end with the job's own exit code:
0 done, 1 failed, 3 canceled, 6 not ended within --timeout."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _DESCRIPTION
    add = parser.add_argument
    add("task", choices=TASKS)
    add(
        "payload",
        nargs="?",
        help="a JSON object; or words, which become what the task is about: the text of a chat, "
        "the goal of a plan, the prompt for code, the input of embed, the query of rag",
    )
    add("-f", "--file", help="the payload from a file; - for stdin")
    add("--key", help="Idempotency-Key: the same request again is the same job")
    add("--ttl", type=seconds, metavar="TIME", help="how long the job is kept, such as 2h")
    add("--attempt-timeout", type=seconds, metavar="TIME", help="how long an attempt may run")
    add("--attempts", type=positive_int, metavar="N", help="how often it is tried")
    add("--delay", type=seconds, metavar="TIME", help="not before so long, such as 90s")
    add("--at", metavar="WHEN", help="not before then, such as 2030-01-31T08:00:00Z")
    add("--lane", help="high, normal or low, where the gateway has such lanes")
    follow = parser.add_mutually_exclusive_group()
    follow.add_argument("--stream", action="store_true", help="show the answer as it comes")
    follow.add_argument("--wait", action="store_true", help="wait, and print the result")
    add("--text", action="store_true", help="with --wait: the result's text alone")
    add(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="with --wait or --stream: not longer than this",
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.from_arguments(arguments)
    payload = read_payload(arguments.task, arguments.payload, arguments.file)
    sluice = connect(arguments, retries=PERSISTENT_RETRIES)
    handle = sluice.submit(arguments.task, payload, **_options(arguments))
    if arguments.stream:
        from sluice.commands.jobs.watch import JobFollower

        console.info(handle.id)
        return JobFollower(console, [handle], timeout_s=arguments.timeout).run()
    if arguments.wait:
        from sluice.commands.jobs.result import print_result
        from sluice.commands.jobs.watch import wait_for_job

        console.info(handle.id)
        job = wait_for_job(console, handle, arguments.timeout)
        return print_result(console, job, text_only=arguments.text)
    console.print_value(handle.id, {"job_id": handle.id})
    if console.is_table and console.is_terminal:
        console.info(f"follow it with: sluice watch {handle.id}")
    return ExitCode.OK


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of the submission that were given."""
    options = {
        "idempotency_key": arguments.key,
        "ttl_s": None if arguments.ttl is None else round(arguments.ttl),
        "timeout_s": arguments.attempt_timeout,
        "max_attempts": arguments.attempts,
        "delay_s": arguments.delay,
        "run_at": arguments.at,
        "lane": arguments.lane,
    }
    return {name: value for name, value in options.items() if value is not None}
