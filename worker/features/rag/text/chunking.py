"""Splits a text into chunks for search: whole paragraphs and sentences, with some overlap."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from sluice.worker.features.rag.parsing.outline import lines


class Span(NamedTuple):
    """A part of a text: `text[start:end]`, in characters."""

    start: int
    end: int


#: No alternative can start within a match of the same kind, so that the search is linear in the
#: text.
_END: Final = re.compile(
    r"""(?<![.!?…])[.!?…]+["'”’»)\]]*(?=\s)"""
    r"""|[。！？｡]+[」』”’）]*"""
    r"""|\n(?=[ \t]{0,12}(?:[-*+#>|•]|\d{1,3}[.)])\s)"""
    r"""|^[ ]{0,3}\#{1,6}[ ][^\n]*(?=\n)"""
    r"""|\n[ \t\r]*(?=\n)""",
    re.MULTILINE,
)
_LAST_WORD: Final = re.compile(r"[^\s(\[]*\Z")
#: Abbreviations whose full stop does not end a sentence.
_ABBREVIATION_LIST: Final = (
    "e.g i.e cf dr mr mrs ms prof st vs no nr fig eq sec ch vol ed eds approx al "
    "z.b d.h u.a bzw ca ggf evtl vgl abs art bd hrsg m mme mlle p pp sr sra"
)
_ABBREVIATIONS: Final = frozenset(_ABBREVIATION_LIST.split())


def split_sentences(text: str, start: int = 0, end: int | None = None) -> list[Span]:
    """The sentences of `text[start:end]` without surrounding blanks; together they contain all
    words.
    """
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
    """`text[start:end]` without surrounding blanks."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return Span(start, max(start, start + len(part.strip())))


def _add(found: list[Span], text: str, start: int, end: int) -> None:
    span = strip_span(text, start, end)
    if span.start < span.end:
        found.append(span)


def _is_abbreviation(text: str, start: int, stop: int) -> bool:
    """True if an abbreviation, an initial or the number of a list item precedes a full stop."""
    match = _LAST_WORD.search(text, max(start, stop - 12), stop)
    word = match[0].casefold() if match else ""
    if word.isdigit():
        return not text[start : stop - len(word)].strip()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha())


#: Length at which a chunk is closed, and the maximum.
TARGET_CHARS: Final = 800
MAX_CHARS: Final = 1200
#: A heading does not start a new chunk while the current one is shorter than this.
MIN_CHARS: Final = 300
#: Longest end of a chunk that the next one repeats.
OVERLAP_CHARS: Final = 160
#: How far a cut within a very long word moves back, to keep combining marks with their base.
_STEP_BACK: Final = 16
_JOINERS: Final = frozenset("\u200d\ufe0e\ufe0f")


class _Piece(NamedTuple):
    start: int
    end: int
    heading: bool = False


def split_chunks(text: str, *, marked: bool = False) -> list[Span]:
    """Spans that cover every word of `text`, in order.

    In a `marked` text, headings start chunks.
    """
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
    """Headings at the end of a chunk; they belong to the next one."""
    at = len(held)
    while at > 1 and held[at - 1].heading:
        at -= 1
    return held[at:]


def _overlap(text: str, before: Span, piece: _Piece) -> list[_Piece]:
    """Repeat the last sentence of a chunk if it is short and the section continues."""
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
    """Paragraphs; sentences of long paragraphs; parts of long sentences. Headings are separate."""
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
    """Where to cut a text that starts at `start`: between words, if possible."""
    window = text[start : start + MAX_CHARS + 1]
    for position in range(len(window) - 1, 0, -1):
        if window[position].isspace():
            return start + position
    for position in range(MAX_CHARS, MAX_CHARS - _STEP_BACK, -1):
        mark = window[position]
        if not (
            unicodedata.combining(mark) or mark in _JOINERS or window[position - 1] in _JOINERS
        ):
            return start + position
    return start + MAX_CHARS
