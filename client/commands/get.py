"""`sluice get`: how a job is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from client.commands.gateway_options import add_gateway, connect
from client.exits import Exit
from client.terminal.console import Console, add_output
from client.terminal.text import ago, as_json, clock, cut, duration

#: As much of a payload or a result as a person wants to see at a glance.
GLANCE = 500
_ABSENT = object()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Exit code 0 whatever became of the job; `sluice result` and `sluice watch` end with its "
        "own."
    )
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument(
        "--field", metavar="PATH", help="one value alone, such as status or result.text"
    )
    add_gateway(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.of(arguments), connect(arguments)
    for place, job_id in enumerate(arguments.job_ids):
        raw = sluice.job(job_id).get().raw
        if arguments.field is not None:
            value = member(raw, arguments.field)
            if value is _ABSENT:
                console.complain(f"sluice: job {job_id} has no {arguments.field}")
                return Exit.MISSING
            console.stream(f"{value if isinstance(value, str) else as_json(value)}\n")
            continue
        if place and console.for_people:
            console.line("")
        console.facts(facts(raw), raw)
    return Exit.OK


def facts(job: Mapping[str, Any]) -> list[tuple[str, object]]:
    """A job for people."""
    took = None
    if isinstance(job.get("updated_ts"), int) and isinstance(job.get("created_ts"), int):
        took = job["updated_ts"] - job["created_ts"]
    return [
        ("job", job.get("job_id")),
        ("task", job.get("task")),
        ("status", job.get("status")),
        ("created", f"{clock(job.get('created_ts'))} ({ago(job.get('created_ts'))})"),
        ("changed", f"{clock(job.get('updated_ts'))} ({duration(took)} later)"),
        ("kept for", duration((job.get("ttl_s") or 0) * 1000)),
        ("payload", glance(job.get("payload"))),
        ("result", glance(job.get("result"))),
        ("error", glance(job.get("error"))),
    ]


def glance(value: object) -> str:
    """JSON in one line, not too long of one; nothing for nothing."""
    return "" if value is None else cut(as_json(value), GLANCE)


def member(value: object, path: str) -> object:
    """What a path such as `result.items.0` leads to; _ABSENT for nowhere."""
    for name in path.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif (
            isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value)
        ):
            value = value[int(name)]
        else:
            return _ABSENT
    return value
