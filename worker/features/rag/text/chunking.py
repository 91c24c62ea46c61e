"""Cuts a text into chunks for search: whole paragraphs and sentences, exact spans, some overlap."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from worker.features.rag.parsing.outline import lines


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
_ABBREVIATION_LIST: Final = (
    "e.g i.e cf dr mr mrs ms prof st vs no nr fig eq sec ch vol ed eds approx al "
    "z.b d.h u.a bzw ca ggf evtl vgl abs art bd hrsg m mme mlle p pp sr sra"
)
_ABBREVIATIONS: Final = frozenset(_ABBREVIATION_LIST.split())


def split_sentences(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """The sentences of `text[start:end]`, without the blanks around them; all words are in one."""
    end = len(text) if end is None else end
    found: list[Span] = []
    at = start
    for match in _END.finditer(text, start, end):
        if text[match.start()] == "." and _is_abbreviation(text, at, match.start()):
            continue
        _add(found, text, at, match.end())
        at = match.end()
    _add(found, text, at, end)
    return found


def strip_span(text: str, start: int, end: int) -> Span:
    """`text[start:end]` without the blanks around it."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return Span(start, max(start, start + len(part.strip())))


def _add(found: list[Span], text: str, start: int, end: int) -> None:
    span = strip_span(text, start, end)
    if span.start < span.end:
        found.append(span)


def _is_abbreviation(text: str, start: int, stop: int) -> bool:
    """Whether what stands before a full stop is an abbreviation, an initial or a list's number."""
    match = _LAST_WORD.search(text, max(start, stop - 12), stop)
    word = match[0].casefold() if match else ""
    if word.isdigit():
        return not text[start : stop - len(word)].strip()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())


#: Characters of a chunk: one that has so many is closed, and none has more than that.
TARGET_CHARS: Final = 800
MAX_CHARS: Final = 1200
#: A heading does not begin a new chunk while there is so little in this one.
MIN_CHARS: Final = 300
#: Most of the end of a chunk that the next one repeats.
OVERLAP_CHARS: Final = 160
#: How far back a cut within a very long word goes, to leave marks with their letters.
_STEP_BACK: Final = 16
_JOINERS: Final = frozenset("\u200d\ufe0e\ufe0f")


class _Piece(NamedTuple):
    start: int
    end: int
    heading: bool = False


def split_chunks(text: str, *, marked: bool = False) -> list[Span]:
    """Spans that hold every word of `text`, in order; in a `marked` text headings count."""
    found: list[Span] = []
    held: list[_Piece] = []
    for piece in _pieces(text, marked):
        if held and _is_full(held, piece):
            rest = _trailing_headings(held)
            found.append(Span(held[0].start, held[len(held) - len(rest) - 1].end))
            held = rest or _overlap(text, found[-1], piece)
            if held and piece.end - held[0].start > MAX_CHARS:
                if rest:
                    found.append(Span(rest[0].start, rest[-1].end))
                held = []
        held.append(piece)
    if held:
        found.append(Span(held[0].start, held[-1].end))
    return found


def _is_full(held: list[_Piece], piece: _Piece) -> bool:
    length = held[-1].end - held[0].start
    if piece.end - held[0].start > MAX_CHARS or length >= TARGET_CHARS:
        return True
    return piece.heading and length >= MIN_CHARS and not held[-1].heading


def _trailing_headings(held: list[_Piece]) -> list[_Piece]:
    """Headings at the end of a chunk belong to what follows."""
    at = len(held)
    while at > 1 and held[at - 1].heading:
        at -= 1
    return held[at:]


def _overlap(text: str, before: Span, piece: _Piece) -> list[_Piece]:
    """The last sentence of a chunk again, where that is short and the same section goes on."""
    if piece.heading:
        return []
    tail = max(before.start, before.end - 2 * OVERLAP_CHARS)
    last = split_sentences(text, tail, before.end)[-1:]
    if not last or last[0].start == tail or before.end - last[0].start > OVERLAP_CHARS:
        return []
    if piece.end - last[0].start > MAX_CHARS:
        return []
    return [_Piece(last[0].start, before.end)]


def _pieces(text: str, marked: bool) -> Iterator[_Piece]:
    """Paragraphs; sentences of long ones; parts of long sentences. Headings stand alone."""
    start = end = -1
    for line in lines(text, marked=marked):
        blank = not text[line.start : line.end].strip()
        if start >= 0 and (blank or line.level):
            yield from _paragraph(text, start, end)
            start = -1
        if line.level:
            whole = _paragraph(text, line.start, line.end)
            yield from (_Piece(part.start, part.end, heading=True) for part in whole)
        elif not blank:
            start = line.start if start < 0 else start
            end = line.end
    if start >= 0:
        yield from _paragraph(text, start, end)


def _paragraph(text: str, start: int, end: int) -> Iterator[_Piece]:
    whole = strip_span(text, start, end)
    if whole.end - whole.start <= TARGET_CHARS:
        yield _Piece(*whole)
        return
    for sentence in split_sentences(text, *whole):
        yield from _parts(text, *sentence)


def _parts(text: str, start: int, end: int) -> Iterator[_Piece]:
    while end - start > MAX_CHARS:
        cut = _cut(text, start)
        part = strip_span(text, start, cut)
        yield _Piece(*part)
        start = strip_span(text, cut, end).start
    if start < end:
        yield _Piece(start, end)


def _cut(text: str, start: int) -> int:
    """Where to cut what begins at `start`: between words, if there is any place between words."""
    window = text[start : start + MAX_CHARS + 1]
    for place in range(len(window) - 1, 0, -1):
        if window[place].isspace():
            return start + place
    for place in range(MAX_CHARS, MAX_CHARS - _STEP_BACK, -1):
        mark = window[place]
        if not (unicodedata.combining(mark) or mark in _JOINERS or window[place - 1] in _JOINERS):
            return start + place
    return start + MAX_CHARS
