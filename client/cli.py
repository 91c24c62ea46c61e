"""The `sluice` command."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.metadata import version

from client import audit
from client.up import up
from client.worker_choice import WISHES

#: Commands of the operator, who sits at the machine itself. They bring much with them, so that
#: each is loaded only when it is asked for.
_FROM_OPS = {
    "doctor": ("ops.doctor.command", "look at everything, and name the fix of each fault"),
    "model": ("ops.model.command", "install and serve a small model, for trying and testing"),
    "key": ("ops.keys", "make, list, rotate and revoke API keys"),
}


def main() -> None:
    """Parse the command line and run a command; its return value is the exit code."""
    parser = argparse.ArgumentParser(prog="sluice", description=__doc__)
    parser.add_argument("--version", action="version", version=f"sluice {version('sluice')}")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="run gateway, worker and Redis together")
    starting.add_argument(
        "--worker",
        choices=WISHES,
        default=WISHES[0],
        help="auto: the real handlers where MODEL_URL is set or a model is served, else echo",
    )
    starting.set_defaults(run=lambda arguments: up(arguments.worker))
    audit.register(commands)
    for name, (module, purpose) in _FROM_OPS.items():
        operating = commands.add_parser(name, help=purpose)
        if sys.argv[1:2] == [name]:
            command = import_module(module)
            command.add_arguments(operating)
            operating.set_defaults(run=command.run)
    arguments = parser.parse_args()
    sys.exit(arguments.run(arguments))
