"""Asks for confirmation before data is removed or replaced."""

from __future__ import annotations

import os

from deploy.installer.errors import Unsuitable
from deploy.installer.options import Options
from deploy.installer.output import Output


def confirm(options: Options, what: str, output: Output) -> None:
    """Returns if the user agrees; raises Unsuitable otherwise, or without a terminal and --yes."""
    if options.yes:
        return
    if not os.isatty(0):
        raise Unsuitable(what, "To confirm, add --yes.")
    output.line(what)
    if input("Continue? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Unsuitable("canceled; nothing was changed", "")
