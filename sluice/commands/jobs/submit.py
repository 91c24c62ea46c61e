"""`sluice submit`: submit a job, and optionally follow it or wait for its result."""

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

_DESCRIPTION = """Submit a job and print its id. With --stream, print the answer while it is
generated; with --wait, print the result when the job has ended. Then the exit code reflects the
outcome of the job: 0 done, 1 failed, 3 canceled, 6 not ended within --timeout."""
_EXAMPLES = """Examples:
  sluice submit chat "Why is the sky blue?" --stream
  sluice submit chat -f question.json --wait --text
  sluice submit plan "Move to Lisbon" --delay 10m --attempts 5
  echo '{"text": "hello"}' | sluice submit chat -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    add = parser.add_argument
    add("task", choices=TASKS)
    add(
        "payload",
        nargs="?",
        help="a JSON object, or plain text, which becomes the main member of the payload: text of "
        "chat, goal of plan, prompt of code, input of embed, query of rag; - reads stdin",
    )
    add("-f", "--file", help="read the payload from a file; - for stdin")
    add("--key", help="Idempotency-Key: repeating the request returns the same job")
    add(
        "--ttl",
        type=seconds,
        metavar="TIME",
        help="how long the job is kept after its last change, such as 2h",
    )
    add("--attempt-timeout", type=seconds, metavar="TIME", help="maximum run time of one attempt")
    add("--attempts", type=positive_int, metavar="N", help="maximum number of attempts")
    add("--delay", type=seconds, metavar="TIME", help="start after this delay, such as 90s")
    add("--at", metavar="WHEN", help="start at this time, such as 2030-01-31T08:00:00Z")
    add("--lane", help="priority lane: high, normal or low, if configured in the gateway")
    follow = parser.add_mutually_exclusive_group()
    follow.add_argument(
        "--stream", action="store_true", help="print the answer while it is generated"
    )
    follow.add_argument("--wait", action="store_true", help="wait for the job and print its result")
    add("--text", action="store_true", help="with --wait: print only the text of the result")
    add(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="maximum time of --wait or --stream",
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
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
        console.info(f"to follow the job: sluice watch {handle.id}")
    return ExitCode.OK


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
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
