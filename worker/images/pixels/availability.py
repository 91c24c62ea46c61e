"""Which packages images need, and what to install where one is missing. Imports none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable


def missing_for(format: str) -> str:
    """What to install for a format; empty where all is there."""
    if importlib.util.find_spec("PIL") is None:
        return "images need the package Pillow; install sluice[images]"
    if format == "heic" and importlib.util.find_spec("pillow_heif") is None:
        return "heic needs the package pillow-heif; install sluice[heic]"
    return ""


def missing(formats: Iterable[str]) -> str:
    """What to install for any of them; empty where all is there."""
    return next(filter(None, map(missing_for, sorted(formats))), "")
