"""Finds the program in what a model said, and which language it is in."""

from __future__ import annotations

import re
from typing import NamedTuple

from worker.model.fences import blocks
from worker.model.json_answers import without_thoughts

#: Other names of languages, as fences have them.
ALIASES = {
    "py": "python", "python3": "python", "py3": "python",
    "js": "javascript", "node": "javascript", "mjs": "javascript", "ts": "typescript",
    "sh": "bash", "shell": "bash", "zsh": "bash", "console": "bash",
    "c++": "cpp", "cc": "cpp", "cxx": "cpp", "cs": "csharp", "c#": "csharp",
    "golang": "go", "rs": "rust", "rb": "ruby", "kt": "kotlin", "yml": "yaml", "md": "markdown",
}  # fmt: skip

#: Lines that only programs have: how they begin, how they end, what they hold.
_CODE_LINE = re.compile(
    r"""^\s*(?:
        (?:def|class|import|from|return|if|elif|else|for|while|try|except|with|async|await|raise
          |function|const|let|var|export|public|private|static|void|int|fn|impl|use|mod|func|package
          |type|struct|enum|interface|namespace|using|select|insert|update|create|echo|local|end
        )\b.*[({:;=]
        | (?:import|from|return|use|package|pass|break|continue|else|end)\b[^.!?]*$
        | [\#@/{}\])<$] | \#include | <\?
        | [\w.\[\]"'*]+(?:\s*:\s*[\w\[\], |]+)?\s*(?:[-+*/|&]?=|:=)\s*\S
        | [\w.]+\(.*\)\s*;?$
        | ["'\[{(].*[,\]})"'\[{(:]$
    )|[;{}]\s*$""",
    re.VERBOSE | re.IGNORECASE,
)
#: The part of lines that have to look like a program's, and how much is looked at.
_MOSTLY = 0.6
_LINES = 400
_LINE_CHARS = 200


class Found(NamedTuple):
    """A program; `language` is empty where nobody says."""

    code: str
    language: str


def canonical(language: str) -> str:
    """One name for each language."""
    name = language.strip().lower().lstrip(".")
    return ALIASES.get(name, name)


def find_code(text: str, wanted: str = "") -> Found | None:
    """The longest block of the wanted language, else the longest at all, else a text of code only.

    None where there is nothing of the kind.
    """
    text = without_thoughts(text)
    found = [Found(block.text, canonical(block.language)) for block in blocks(text)]
    found = [each for each in found if each.code.strip()]
    if found:
        matching = [each for each in found if wanted and each.language == canonical(wanted)]
        best = max(matching or found, key=lambda each: len(each.code))
        return best._replace(language=best.language or canonical(wanted))
    if looks_like_code(text):
        return Found(text.strip("\n"), canonical(wanted))
    return None


def looks_like_code(text: str) -> bool:
    """Whether most lines are such as only programs have."""
    lines = [line[:_LINE_CHARS] for line in text.split("\n") if line.strip()][:_LINES]
    alike = [line for line in lines if line[0] in " \t" or _CODE_LINE.match(line)]
    return bool(lines) and len(alike) >= _MOSTLY * len(lines)
