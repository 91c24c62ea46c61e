"""Sections of a Markdown page; each benchmark replaces its own section and keeps the others."""

from __future__ import annotations

import re

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def find(page: str, heading: str) -> str:
    """A section with its heading; empty if there is none."""
    begins = [(found.group(1).strip(), found.start()) for found in _HEADING.finditer(page)]
    ends = [start for _, start in begins[1:]] + [len(page)]
    for (name, start), end in zip(begins, ends):
        if name == heading:
            return page[start:end].strip() + "\n"
    return ""


def put(page: str, heading: str, section: str) -> str:
    """Replaces a section of the page, or appends it."""
    old, new = find(page, heading), section.strip() + "\n"
    if old:
        return page.replace(old, new)
    return f"{page.rstrip()}\n\n{new}"
