"""`sluice tools`: list the tools that workers offer to jobs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from sluice.commands.arguments import add_gateway_option, connect
from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options
from sluice.terminal.render import Column

Row = Mapping[str, Any]


def origin(tool: Row) -> str:
    return f"mcp: {tool['server']}" if tool.get("server") else str(tool.get("origin") or "")


def summary(tool: Row) -> str:
    """The first line of the description."""
    return str(tool.get("description") or "").partition("\n")[0]


_NONE = "no worker offers tools (the echo worker has none); start one: sluice up --worker real"
COLUMNS = (
    Column("TOOL", lambda row: row.get("name")),
    Column("ORIGIN", origin),
    Column("WORKERS", lambda row: row.get("worker_count"), right=True),
    Column("DESCRIPTION", summary),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice tools
  sluice tools calculator"""
    parser.add_argument("name", metavar="TOOL", nargs="?", help="show one tool with its arguments")
    add_gateway_option(parser)
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    console = Console.from_arguments(arguments)
    found = [dict(tool.raw) for tool in connect(arguments).tools()]
    if arguments.name is None:
        console.print_rows(COLUMNS, found, _NONE)
        return ExitCode.OK
    named = [tool for tool in found if tool.get("name") == arguments.name]
    if not named:
        console.error(f"sluice: no worker offers the tool {arguments.name}; see `sluice tools`")
        return ExitCode.NOT_FOUND
    for tool in named:
        pairs: list[tuple[str, object]] = [
            ("tool", tool.get("name")),
            ("origin", origin(tool)),
            ("workers", ", ".join(tool.get("workers") or ()) or tool.get("worker_count")),
            ("description", tool.get("description")),
            ("arguments", json.dumps(tool.get("parameters"))),
        ]
        console.print_details(pairs, tool)
    return ExitCode.OK
