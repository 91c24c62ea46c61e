"""The `sluice` command."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version

from client import audit
from client.up import up


def main() -> None:
    """Parse the command line and run a command; its return value is the exit code."""
    parser = argparse.ArgumentParser(prog="sluice", description=__doc__)
    parser.add_argument("--version", action="version", version=f"sluice {version('sluice')}")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="run gateway, echo worker and Redis together")
    starting.set_defaults(run=lambda _: up())
    audit.register(commands)
    arguments = parser.parse_args()
    sys.exit(arguments.run(arguments))
