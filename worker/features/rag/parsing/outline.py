"""Markdown headings of a text, and the path of headings above a position."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_UNDERLINE: Final = re.compile(r" {0,3}(={3,}|-{3,})\s*\Z")
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_LEVEL_OF: Final = {"=": 1, "-": 2}
_TITLE_CHARS: Final = 100
#: Longer headings are cut: a heading becomes part of the context of every chunk below it.
HEADING_CHARS: Final = 200


class Line(NamedTuple):
    """A line without its line break; a heading if `level` is above 0."""

    start: int
    end: int
    level: int = 0
    title: str = ""


class Heading(NamedTuple):
    """A heading and the start of its line."""

    start: int
    level: int
    title: str


def lines(text: str, *, marked: bool) -> Iterator[Line]:
    """Every line of a text; headings are recognised if `marked`."""
    fence = ""
    start, previous_blank = 0, True
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        line = Line(start, end)
        begins = text[start : min(end, start + 4)].lstrip(" ")[:1]
        if not marked or not begins:
            pass
        elif begins in "`~":
            mark = _FENCE.match(text, start, end)
            if mark and fence in ("", mark[1]):
                fence = "" if fence else mark[1]
        elif not fence:
            line = _heading(text, start, end, previous_blank)
        yield line
        previous_blank = line.level > 0 or start == end or not text[start:end].strip()
        start = end + 1


def headings(text: str, *, marked: bool) -> list[Heading]:
    return [
        Heading(line.start, line.level, line.title)
        for line in (lines(text, marked=True) if marked else ())
        if line.level
    ]


def paths(found: Sequence[Heading], starts: Sequence[int]) -> list[str]:
    """For each of the ascending positions: the headings above it, outermost first."""
    paths_found: list[str] = []
    path: list[Heading] = []
    at = 0
    for start in starts:
        while at < len(found) and found[at].start < start:
            path = [above for above in path if above.level < found[at].level]
            path.append(found[at])
            at += 1
        paths_found.append(" > ".join(heading.title for heading in path))
    return paths_found


def title(text: str, *, marked: bool) -> str:
    """A title for a text: its first heading of the highest level, else its first line."""
    found = headings(text, marked=marked)
    if found:
        return min(found, key=lambda heading: heading.level).title
    first = next((line for line in text[:10_000].splitlines() if line.strip()), "")
    line = " ".join(first.split())
    if len(line) <= _TITLE_CHARS:
        return line
    return line[:_TITLE_CHARS].rsplit(" ", 1)[0]


def _heading(text: str, start: int, end: int, after_blank: bool) -> Line:
    match = _HEADING.match(text, start, end)
    if match:
        words = match[2].strip()
        words = words.rstrip("#").rstrip() or words
        return Line(start, end, len(match[1]), words[:HEADING_CHARS])
    if after_blank and text[end + 1 : end + 5].lstrip(" ")[:1] in ("=", "-"):
        words = text[start:end].strip()
        below = text.find("\n", end + 1)
        mark = _UNDERLINE.match(text, end + 1, len(text) if below < 0 else below)
        if mark and words and not _UNDERLINE.match(words):
            return Line(start, end, _LEVEL_OF[mark[1][0]], words[:HEADING_CHARS])
    return Line(start, end)
