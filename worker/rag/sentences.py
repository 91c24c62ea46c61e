"""Where sentences begin and end, in prose, lists and scripts without spaces."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Span(NamedTuple):
    """A part of a text: `text[start:end]`, in characters."""

    start: int
    end: int


#: Each alternative begins where no match of the same kind could have begun before, so that the
#: search takes one way through any text.
_END: Final = re.compile(
    r"""(?<![.!?…])[.!?…]+["'”’»)\]]*(?=\s)"""
    r"""|[。！？｡]+[」』”’）]*"""
    r"""|\n(?=[ \t]{0,12}(?:[-*+#>|•]|\d{1,3}[.)])\s)"""
    r"""|^[ ]{0,3}\#{1,6}[ ][^\n]*(?=\n)"""
    r"""|\n[ \t\r]*(?=\n)""",
    re.MULTILINE,
)
_LAST_WORD: Final = re.compile(r"[^\s(\[]*\Z")
#: After these a full stop ends no sentence.
_SHORT_WORDS: Final = (
    "e.g i.e cf dr mr mrs ms prof st vs no nr fig eq sec ch vol ed eds approx al "
    "z.b d.h u.a bzw ca ggf evtl vgl abs art bd hrsg m mme mlle p pp sr sra"
)
_SHORT: Final = frozenset(_SHORT_WORDS.split())


def sentences(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """The sentences of `text[start:end]`, without the blanks around them; all words are in one."""
    end = len(text) if end is None else end
    found: list[Span] = []
    at = start
    for match in _END.finditer(text, start, end):
        if text[match.start()] == "." and _is_short(text, at, match.start()):
            continue
        _add(found, text, at, match.end())
        at = match.end()
    _add(found, text, at, end)
    return found


def stripped(text: str, start: int, end: int) -> Span:
    """`text[start:end]` without the blanks around it."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return Span(start, max(start, start + len(part.strip())))


def _add(found: list[Span], text: str, start: int, end: int) -> None:
    span = stripped(text, start, end)
    if span.start < span.end:
        found.append(span)


def _is_short(text: str, start: int, stop: int) -> bool:
    """Whether what stands before a full stop is an abbreviation, an initial or a list's number."""
    match = _LAST_WORD.search(text, max(start, stop - 12), stop)
    word = match[0].casefold() if match else ""
    if word.isdigit():
        return not text[start : stop - len(word)].strip()
    return word in _SHORT or (len(word) == 1 and word.isalpha())
