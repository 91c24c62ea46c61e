"""`sluice version`: print the version."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version

from sluice.errors import ExitCode
from sluice.terminal.console import Console, add_output_options

UNKNOWN = "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """Examples:
  sluice version
  sluice version -o json"""
    add_output_options(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        installed = version("sluice")
    except PackageNotFoundError:  # a checkout without an installation
        installed = UNKNOWN
    console = Console.from_arguments(arguments)
    console.print_value(f"sluice {installed}", {"version": installed})
    return ExitCode.OK
