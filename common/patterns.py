"""Patterns of the contracts in the words of others."""

from __future__ import annotations

import re


def in_schema(pattern: re.Pattern[str]) -> str:
    """As JSON Schema and pydantic write it, which know no `\\A` and `\\Z`."""
    return pattern.pattern.replace(r"\A", "^").replace(r"\Z", "$")
