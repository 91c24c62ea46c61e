"""A mutant: one small change of one file, with an identity that survives unrelated edits."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """A change as a mutator finds it. `apply` returns the changed source of the whole file."""

    operator: str
    #: Line number, from 1.
    line: int
    apply: Callable[[], str]


@dataclass(frozen=True)
class Mutant:
    """A change of one file of the product."""

    id: str
    path: str
    operator: str
    line: int
    apply: Callable[[], str]


def identify(path: str, source: str, changes: Iterable[Change]) -> list[Mutant]:
    """Gives each change an id: path, operator, hash of the original line, number.

    The number distinguishes changes of the same operator in equal lines of the file.
    """
    lines = source.splitlines()
    seen: Counter[str] = Counter()
    found = []
    for change in changes:
        text = lines[change.line - 1].strip()
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        stem = f"{path}:{change.operator}:{digest}"
        found.append(
            Mutant(f"{stem}:{seen[stem]}", path, change.operator, change.line, change.apply)
        )
        seen[stem] += 1
    return found


def edit(source: str, start: int, end: int, text: str) -> Callable[[], str]:
    """A change that replaces the characters from `start` to `end`."""
    return lambda: source[:start] + text + source[end:]
