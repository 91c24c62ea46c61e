"""Finds the fenced blocks of a Markdown text, as models write them."""

from __future__ import annotations

import re
from typing import NamedTuple

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$")


class Block(NamedTuple):
    """What stands between two fences; the last one's end may be missing."""

    #: The first word after the opening fence, in lower case.
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    """All fenced blocks, in their order."""
    found: list[Block] = []
    fence = language = ""
    inside: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line.rstrip("\r"))
        if not fence:
            if match is not None:
                words = match[2].split()
                fence, language, inside = match[1], words[0].lower() if words else "", []
        elif match is not None and _closes(match, fence):
            found.append(Block(language, "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    if fence and any(line.strip() for line in inside):  # cut off, or forgotten
        found.append(Block(language, "\n".join(inside)))
    return found


def _closes(match: re.Match[str], fence: str) -> bool:
    return match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip()
