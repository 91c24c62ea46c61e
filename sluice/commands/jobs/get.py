"""`sluice get`: show a job."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.text import as_json, format_ago, format_duration, format_time, truncate

#: Maximum length of a payload or result in the output.
PREVIEW_CHARS = 500
_ABSENT = object()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show jobs with their status, payload, result and error. Always exits 0 if the jobs exist. "
        "Use `sluice result` or `sluice watch` for an exit code that reflects the outcome of a job."
    )
    parser.epilog = """Examples:
  sluice get 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90
  sluice get 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 --field result.text
  sluice get 6f1c2f4e-0a52-4d5e-9d0a-2f1c6b7e8a90 -o json"""
    parser.add_argument("job_ids", nargs="+", metavar="ID")
    parser.add_argument(
        "--field", metavar="PATH", help="print one value only, such as status or result.text"
    )
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console, sluice = Console.from_arguments(arguments), connect(arguments)
    for index, job_id in enumerate(arguments.job_ids):
        raw = sluice.job(job_id).get().raw
        if arguments.field is not None:
            value = value_at(raw, arguments.field)
            if value is _ABSENT:
                console.error(f"sluice: job {job_id} has no field {arguments.field}")
                return ExitCode.NOT_FOUND
            console.write(f"{value if isinstance(value, str) else as_json(value)}\n")
            continue
        if index and console.is_table:
            console.print_line("")
        console.print_details(job_details(raw), raw)
    return ExitCode.OK


def job_details(job: Mapping[str, Any]) -> list[tuple[str, object]]:
    took = None
    if isinstance(job.get("updated_ts"), int) and isinstance(job.get("created_ts"), int):
        took = job["updated_ts"] - job["created_ts"]
    return [
        ("job", job.get("job_id")),
        ("task", job.get("task")),
        ("status", job.get("status")),
        ("created", f"{format_time(job.get('created_ts'))} ({format_ago(job.get('created_ts'))})"),
        ("updated", f"{format_time(job.get('updated_ts'))} ({format_duration(took)} later)"),
        ("ttl", format_duration((job.get("ttl_s") or 0) * 1000)),
        ("payload", preview(job.get("payload"))),
        ("result", preview(job.get("result"))),
        ("error", preview(job.get("error"))),
    ]


def preview(value: object) -> str:
    """A value as JSON on one line, truncated; empty for None."""
    return "" if value is None else truncate(as_json(value), PREVIEW_CHARS)


def describe_error(error: object) -> str:
    """The error of a job on one line; empty for None."""
    if not isinstance(error, Mapping):
        return preview(error)
    return f"{error.get('kind', '')}: {error.get('message', '')}"


def value_at(value: object, path: str) -> object:
    """The value at a path such as `result.items.0`; `_ABSENT` if it does not exist."""
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
