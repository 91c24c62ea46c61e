"""Cuts a text into chunks for search: whole paragraphs and sentences, exact spans, some overlap."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final, NamedTuple

from worker.rag.outline import lines
from worker.rag.sentences import Span, sentences, stripped

#: Characters of a chunk: one that has so many is closed, and none has more than that.
ENOUGH: Final = 800
MOST: Final = 1200
#: A heading does not begin a new chunk while there is so little in this one.
FEW: Final = 300
#: Most of the end of a chunk that the next one repeats.
OVERLAP: Final = 160
#: How far back a cut within a very long word goes, to leave marks with their letters.
_STEP_BACK: Final = 16
_JOINERS: Final = frozenset("\u200d\ufe0e\ufe0f")


class _Piece(NamedTuple):
    start: int
    end: int
    heading: bool = False


def chunks(text: str, *, marked: bool = False) -> list[Span]:
    """Spans that hold every word of `text`, in order; in a `marked` text headings count."""
    found: list[Span] = []
    held: list[_Piece] = []
    for piece in _pieces(text, marked):
        if held and _is_full(held, piece):
            rest = _trailing_headings(held)
            found.append(Span(held[0].start, held[len(held) - len(rest) - 1].end))
            held = rest or _overlap(text, found[-1], piece)
            if held and piece.end - held[0].start > MOST:
                if rest:
                    found.append(Span(rest[0].start, rest[-1].end))
                held = []
        held.append(piece)
    if held:
        found.append(Span(held[0].start, held[-1].end))
    return found


def _is_full(held: list[_Piece], piece: _Piece) -> bool:
    length = held[-1].end - held[0].start
    if piece.end - held[0].start > MOST or length >= ENOUGH:
        return True
    return piece.heading and length >= FEW and not held[-1].heading


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
    tail = max(before.start, before.end - 2 * OVERLAP)
    last = sentences(text, tail, before.end)[-1:]
    if not last or last[0].start == tail or before.end - last[0].start > OVERLAP:
        return []
    if piece.end - last[0].start > MOST:
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
    whole = stripped(text, start, end)
    if whole.end - whole.start <= ENOUGH:
        yield _Piece(*whole)
        return
    for sentence in sentences(text, *whole):
        yield from _parts(text, *sentence)


def _parts(text: str, start: int, end: int) -> Iterator[_Piece]:
    while end - start > MOST:
        cut = _cut(text, start)
        part = stripped(text, start, cut)
        yield _Piece(*part)
        start = stripped(text, cut, end).start
    if start < end:
        yield _Piece(start, end)


def _cut(text: str, start: int) -> int:
    """Where to cut what begins at `start`: between words, if there is any place between words."""
    window = text[start : start + MOST + 1]
    for place in range(len(window) - 1, 0, -1):
        if window[place].isspace():
            return start + place
    for place in range(MOST, MOST - _STEP_BACK, -1):
        mark = window[place]
        if not (unicodedata.combining(mark) or mark in _JOINERS or window[place - 1] in _JOINERS):
            return start + place
    return start + MOST
