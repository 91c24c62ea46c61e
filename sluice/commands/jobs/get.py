"""`sluice get`: show a job."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.text import as_json, format_ago, format_duration, format_time, truncate

#: How much of a payload or a result is shown.
PREVIEW_CHARS = 500
_ABSENT = object()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Shows jobs. Exit code 0 whatever their status; `sluice result` and `sluice watch` end "
        "with the job's own."
    )
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument(
        "--field", metavar="PATH", help="one value alone, such as status or result.text"
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    console, sluice = Console.from_arguments(arguments), connect(arguments)
    for index, job_id in enumerate(arguments.job_ids):
        raw = sluice.job(job_id).get().raw
        if arguments.field is not None:
            value = value_at(raw, arguments.field)
            if value is _ABSENT:
                console.error(f"sluice: job {job_id} has no {arguments.field}")
                return ExitCode.NOT_FOUND
            console.write(f"{value if isinstance(value, str) else as_json(value)}\n")
            continue
        if index and console.is_table:
            console.print_line("")
        console.print_details(job_details(raw), raw)
    return ExitCode.OK


def job_details(job: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The facts of a job that are shown to people."""
    took = None
    if isinstance(job.get("updated_ts"), int) and isinstance(job.get("created_ts"), int):
        took = job["updated_ts"] - job["created_ts"]
    return [
        ("job", job.get("job_id")),
        ("task", job.get("task")),
        ("status", job.get("status")),
        ("created", f"{format_time(job.get('created_ts'))} ({format_ago(job.get('created_ts'))})"),
        ("changed", f"{format_time(job.get('updated_ts'))} ({format_duration(took)} later)"),
        ("kept for", format_duration((job.get("ttl_s") or 0) * 1000)),
        ("payload", preview(job.get("payload"))),
        ("result", preview(job.get("result"))),
        ("error", preview(job.get("error"))),
    ]


def preview(value: object) -> str:
    """The beginning of a value as JSON in one line; empty for None."""
    return "" if value is None else truncate(as_json(value), PREVIEW_CHARS)


def describe_error(error: object) -> str:
    """A job's error in one line; empty for None."""
    if not isinstance(error, Mapping):
        return preview(error)
    return f"{error.get('kind', '')}: {error.get('message', '')}"


def value_at(value: object, path: str) -> object:
    """The value at a path such as `result.items.0`; _ABSENT if there is none."""
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
