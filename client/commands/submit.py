"""`sluice submit`: hand in a job, and stay with it if that is wanted."""

from __future__ import annotations

import argparse
from typing import Any

from client.commands.gateway_options import STUBBORN, add_gateway, connect
from client.commands.words import TASKS, duration_s, natural, payload_of
from client.exits import Exit
from client.terminal.console import Console, add_output

_DESCRIPTION = """Hands in a job and tells its id: alone on stdout where that is no terminal. With
--stream, the answer goes to stdout as it comes; with --wait, the result when it is there; both end
with the job's own exit code: 0 done, 1 failed, 3 canceled, 6 not ended within --timeout."""


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
    add("--ttl", type=duration_s, metavar="TIME", help="how long the job is kept, such as 2h")
    add("--attempt-timeout", type=duration_s, metavar="TIME", help="how long an attempt may run")
    add("--attempts", type=natural, metavar="N", help="how often it is tried")
    add("--delay", type=duration_s, metavar="TIME", help="not before so long, such as 90s")
    add("--at", metavar="WHEN", help="not before then, such as 2030-01-31T08:00:00Z")
    add("--lane", help="high, normal or low, where the gateway has such lanes")
    staying = parser.add_mutually_exclusive_group()
    staying.add_argument("--stream", action="store_true", help="show the answer as it comes")
    staying.add_argument("--wait", action="store_true", help="wait, and print the result")
    add("--text", action="store_true", help="with --wait: the result's text alone")
    add(
        "--timeout",
        type=duration_s,
        metavar="TIME",
        help="with --wait or --stream: not longer than this",
    )
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console = Console.of(arguments)
    payload = payload_of(arguments.task, arguments.payload, arguments.file)
    sluice = connect(arguments, retries=STUBBORN)
    handle = sluice.submit(arguments.task, payload, **_wishes(arguments))
    if arguments.stream:
        from client.commands.following import Follower

        console.say(handle.id)
        return Follower(console, [handle], timeout_s=arguments.timeout).run()
    if arguments.wait:
        from client.commands.result import print_result
        from client.commands.waiting import wait_for

        console.say(handle.id)
        job = wait_for(console, handle, arguments.timeout)
        return print_result(console, job, text_only=arguments.text)
    if not console.for_people:
        console.json({"job_id": handle.id})
    else:
        console.line(handle.id)
        if console.terminal:
            console.say(f"follow it with: sluice watch {handle.id}")
    return Exit.OK


def _wishes(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line asks for beside the payload."""
    wishes = {
        "idempotency_key": arguments.key,
        "ttl_s": None if arguments.ttl is None else round(arguments.ttl),
        "timeout_s": arguments.attempt_timeout,
        "max_attempts": arguments.attempts,
        "delay_s": arguments.delay,
        "run_at": arguments.at,
        "lane": arguments.lane,
    }
    return {name: value for name, value in wishes.items() if value is not None}
