"""Asks before something is lost."""

from __future__ import annotations

import os

from deploy.installer.errors import Unsuitable
from deploy.installer.options import Options
from deploy.installer.say import Say


def confirm(options: Options, what: str, say: Say) -> None:
    """Go on only with a person's yes; without a terminal only --yes will do."""
    if options.yes:
        return
    if not os.isatty(0):
        raise Unsuitable(what, "If that is what you want, add --yes.")
    say.line(what)
    if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise Unsuitable("nothing was done", "")
