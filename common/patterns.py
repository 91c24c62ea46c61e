"""Patterns that several rooms share, and patterns in the words of others."""

from __future__ import annotations

import re
from typing import Final

#: The name of a tenant.
TENANT: Final = re.compile(r"\A[a-z0-9][a-z0-9-]{0,62}\Z")


def in_schema(pattern: re.Pattern[str]) -> str:
    """As JSON Schema and pydantic write it, which know no `\\A` and `\\Z`."""
    return pattern.pattern.replace(r"\A", "^").replace(r"\Z", "$")
