"""The options of every command that asks a gateway, and the client that they make."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client import Sluice

#: Somebody sits and waits: about a second of patience with a gateway that restarts.
RETRIES = 2
#: What must not get lost is tried for longer.
STUBBORN = 6


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """The option that says which gateway is meant."""
    parser.add_argument(
        "--url",
        help="the gateway (default: SLUICE_URL, else HOST and PORT as the gateway reads them)",
    )


def connect(arguments: argparse.Namespace, *, retries: int = RETRIES) -> Sluice:
    """The client for that gateway; loaded only now, so that --help is quick."""
    from client import Sluice

    return Sluice(arguments.url, retries=retries)
