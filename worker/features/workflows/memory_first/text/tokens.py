"""Splits a text into blocks, sentences and tokens, with positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from sluice.worker.features.rag.parsing import outline
from sluice.worker.features.rag.text.chunking import Span, split_sentences

#: Longer words are cut; longer sentences are split.
MOST_WORD_CHARS: Final = 64
MOST_SENTENCE_CHARS: Final = 4000
_FENCE: Final = re.compile(r"[ \t]{0,12}(```|~~~)")
_MARKUP: Final = re.compile(r"[ \t]{0,12}(?:[-*+#>•]+|\d{1,3}[.)])(?=\s)")
#: Scripts without spaces between words.
_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff"
)
#: Combining marks.
_MARKS: Final = (
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0966-\u0dff\u200c\u200d\u00ad"
)
_LETTER: Final = rf"[^\W{_UNSPACED}]"
#: Every alternative is bounded or cannot backtrack, so that matching is linear.
_TOKEN: Final = re.compile(
    r"(?P<quoted>`[^`\n]{1,200}`)"
    r"|(?P<url>(?:https?|ftp)://[^\s<>\"'`)\]}|]{1,500})"
    r"|(?P<email>[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4})"
    r"|(?P<path>(?<![\w/.])(?:~|\.{1,2})?/[\w.{}*:<>-]{1,64}(?:/[\w.{}*:<>-]{1,64}){0,9})"
    r"|(?P<option>(?<![\w-])--?[A-Za-z][\w-]{1,63})"
    r"|(?P<number>[0-9][0-9.,:/_%-]{0,63})"
    rf"|(?P<unspaced>[{_UNSPACED}]{{1,64}})"
    rf"|(?P<word>{_LETTER}(?:[\w{_MARKS}](?<![{_UNSPACED}]))*"
    rf"(?:['’.·-](?=[^\W_{_UNSPACED}])(?:[\w{_MARKS}](?<![{_UNSPACED}]))+)*)"
)


class BlockKind(Enum):
    """Kind of a block of text."""

    PROSE = auto()
    HEADING = auto()
    TABLE = auto()
    CODE = auto()


class TextBlock(NamedTuple):
    """A part of a text: `text[start:end]`."""

    kind: BlockKind
    start: int
    end: int


class Sentence(NamedTuple):
    """A sentence, heading or table row."""

    kind: BlockKind
    start: int
    end: int


class Token(NamedTuple):
    """A word or symbol; `kind` is the name of its group in the pattern."""

    kind: str
    start: int
    end: int
    text: str


def split_blocks(text: str, *, marked: bool) -> Iterator[TextBlock]:
    """The blocks of a text, in order; headings and code are recognised if `marked`."""
    fence = ""
    kind, start, end = BlockKind.PROSE, 0, 0
    for line in outline.lines(text, marked=marked):
        if line.start == line.end and not fence:
            if kind is BlockKind.PROSE:
                end = line.end
            continue
        mark = _FENCE.match(text, line.start, line.end) if marked else None
        if mark and fence in ("", mark[1]):
            fence, now = ("" if fence else mark[1]), BlockKind.CODE
        elif fence:
            now = BlockKind.CODE
        elif line.level:
            now = BlockKind.HEADING
        else:
            now = _kind_of(text, line.start, line.end)
        if now is not kind or now in (BlockKind.HEADING, BlockKind.TABLE):
            if start < end:
                yield TextBlock(kind, start, end)
            kind, start = now, line.start
        end = line.end
    if start < end:
        yield TextBlock(kind, start, end)


def iter_sentences(text: str, *, marked: bool) -> Iterator[Sentence]:
    """Sentences, headings and table rows of a text; without code."""
    for block in split_blocks(text, marked=marked):
        if block.kind is BlockKind.CODE:
            continue
        if block.kind is not BlockKind.PROSE:
            yield from _pieces(text, block.kind, _unmarked(text, Span(block.start, block.end)))
            continue
        for each in split_sentences(text, block.start, block.end):
            yield from _pieces(text, block.kind, _unmarked(text, each))


def _pieces(text: str, kind: BlockKind, span: Span) -> Iterator[Sentence]:
    """A sentence, split if it is far too long."""
    start, end = span
    while end - start > MOST_SENTENCE_CHARS:
        blank = text.rfind(" ", start + MOST_SENTENCE_CHARS // 2, start + MOST_SENTENCE_CHARS)
        cut = blank if blank > 0 else start + MOST_SENTENCE_CHARS
        yield Sentence(kind, start, cut)
        start = cut
    if start < end:
        yield Sentence(kind, start, end)


def tokenize(text: str, start: int, end: int) -> Iterator[Token]:
    """The tokens of `text[start:end]`, in order."""
    for match in _TOKEN.finditer(text, start, end):
        yield Token(match.lastgroup or "", match.start(), match.end(), match[0])


def _kind_of(text: str, start: int, end: int) -> BlockKind:
    first = text[start : start + 1]
    bars = text.count("|", start, min(end, start + 4000))
    is_table = first == "|" or bars >= 2 or (bars == 1 and " | " in text[start : start + 4000])
    return BlockKind.TABLE if is_table else BlockKind.PROSE


def _unmarked(text: str, span: Span) -> Span:
    """A sentence without the mark of a list, heading or quotation."""
    start = span.start
    for _ in range(3):
        mark = _MARKUP.match(text, start, span.end)
        if mark is None:
            break
        start = mark.end()
        while start < span.end and text[start].isspace():
            start += 1
    return Span(start, span.end)
