"""`sluice version`: which version this is; with --gateway, which one answers there."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version

from client.exits import Exit
from client.terminal.console import Console, add_output

UNKNOWN = "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    try:
        ours = version("sluice")
    except PackageNotFoundError:  # a checkout that is not installed
        ours = UNKNOWN
    console = Console.of(arguments)
    if console.for_people:
        console.line(f"sluice {ours}")
    else:
        console.json({"version": ours})
    return Exit.OK
