"""Chunks and sentences cover every word with exact spans, for any text."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.features.rag.parsing.outline import HEADING_CHARS, headings, paths, title
from worker.features.rag.text.chunking import (
    MAX_CHARS,
    OVERLAP_CHARS,
    TARGET_CHARS,
    Span,
    split_chunks,
    split_sentences,
)

#: Words, blanks, Markdown marks and sentence ends, in any order.
_PIECES = st.sampled_from(
    ["word ", "longer-word ", "\n", "\n\n", "# Head\n", "```\n", "- item\n", ". ", "! ", "。",
     "\r\n", "日本語", "e.g. ", "x" * 300, "é", "e\u0301", " \t ", "👩\u200d👩", "---\n", "\u2028",
     "(", "1. "]
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=3000),
    st.lists(_PIECES, max_size=400).map("".join),
    st.lists(st.text(max_size=20), max_size=300).map(" ".join),
)


@given(TEXTS, st.booleans())
@example("", True)
@example("\n" * 5000 + "x", False)
@example("x" * 10_000, True)
@example("# " + "heading " * 500, True)
def test_every_word_is_in_a_chunk_and_none_is_too_long(text: str, marked: bool) -> None:
    found = split_chunks(text, marked=marked)
    covered = set()
    before = Span(-1, -1)
    for span in found:
        quote = text[span.start : span.end]
        assert quote == quote.strip() != ""
        assert 0 < len(quote) <= MAX_CHARS
        assert span.start > before.start
        assert span.end > before.end
        assert before.end - span.start <= OVERLAP_CHARS  # the overlap is bounded
        covered.update(range(span.start, span.end))
        before = span
    assert all(text[place].isspace() for place in range(len(text)) if place not in covered)


@given(TEXTS, st.booleans())
def test_no_word_is_cut(text: str, marked: bool) -> None:
    """Unless it is too long.

    Blanks, or sentence ends in scripts without spaces, separate chunks.
    """
    for span in split_chunks(text, marked=marked):
        for place in (span.start, span.end):
            around = text[max(0, place - 1) : place + 1]
            inside = len(around) == 2 and not re.search(r"\s|[。！？｡」』”’）]", around)
            if inside:
                run = len(re.split(r"\s", text[:place])[-1]) + len(re.split(r"\s", text[place:])[0])
                assert run > MAX_CHARS


@given(TEXTS)
def test_sentences_hold_every_word(text: str) -> None:
    found = split_sentences(text)
    left = list(text)
    end = 0
    for span in found:
        assert span.start >= end
        assert text[span.start : span.end].strip() == text[span.start : span.end] != ""
        left[span.start : span.end] = " " * (span.end - span.start)
        end = span.end
    assert not "".join(left).strip()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("See e.g. Dr. Who. Then J. R. went.", ["See e.g. Dr. Who.", "Then J. R. went."]),
        ('He said "Stop." Then left.', ['He said "Stop."', "Then left."]),
        ("Version 3.10 is old. So is 6.2.", ["Version 3.10 is old.", "So is 6.2."]),
        ("これは本です。あれは？", ["これは本です。", "あれは？"]),
        ("- one\n- two\n1. three", ["- one", "- two", "1. three"]),
        ("a line\nof prose\n\nnext", ["a line\nof prose", "next"]),
        ("Wait... what? Yes", ["Wait...", "what?", "Yes"]),
    ],
)
def test_sentences(text: str, found: list[str]) -> None:
    assert [text[start:end] for start, end in split_sentences(text)] == found


def test_short_paragraphs_go_together_and_long_ones_apart() -> None:
    paragraph = "This sentence has forty-four characters, ok. " * 5
    found = split_chunks("\n\n".join([paragraph] * 20))
    assert all(TARGET_CHARS * 0.7 < span.end - span.start <= MAX_CHARS for span in found[:-1])
    wall = "This sentence has forty-four characters, ok. " * 100
    spans = split_chunks(wall)
    assert len(spans) > 3
    for one, two in pairwise(spans):
        assert 0 < one.end - two.start <= OVERLAP_CHARS
        assert wall[two.start :].startswith("This sentence")


def test_a_heading_begins_a_chunk_and_is_never_left_behind() -> None:
    words = "Words of a section that goes on for a while. " * 12
    text = "\n\n".join(f"## Part {number}\n\n{words}" for number in range(5))
    for number, span in enumerate(split_chunks(text, marked=True)):
        quote = text[span.start : span.end]
        assert quote.startswith(f"## Part {number}")
        assert len(quote) > 300
    assert len(split_chunks(text, marked=False)) < len(split_chunks(text, marked=True)) + 2


MARKED = """Intro
=====

# One

text

```
# no heading
```

## One a
### Deep ###
# Two
"""


def test_headings_and_the_path_to_a_position() -> None:
    found = headings(MARKED, marked=True)
    reported = [(heading.level, heading.title) for heading in found]
    assert reported == [(1, "Intro"), (1, "One"), (2, "One a"), (3, "Deep"), (1, "Two")]
    places = [0, MARKED.index("text"), MARKED.index("### Deep") + 1, len(MARKED)]
    assert paths(found, places) == ["", "One", "One > One a > Deep", "Two"]
    assert headings(MARKED, marked=False) == []
    long = "# " + "word " * 50_000 + "\n\nAnd so on."
    [path] = paths(headings(long, marked=True), [len(long) - 5])
    assert 0 < len(path) <= HEADING_CHARS


@pytest.mark.parametrize(
    ("text", "marked", "called"),
    [(MARKED, True, "Intro"), ("## Low\n# High\n", True, "High"),
     ("\n  First  line \nsecond", False, "First line"),
     ("word " * 50, False, ("word " * 20).strip()), ("", False, "")],
)  # fmt: skip
def test_titles(text: str, marked: bool, called: str) -> None:
    assert title(text, marked=marked) == called


def test_the_time_is_linear_in_the_text() -> None:
    """Twice the text takes about twice the time; a busy thread could not be stopped."""
    pieces = (*".\n #`-=。'[\u0301", ".'", "\n ", "- ", "e.g.", "1.")
    for piece in pieces:
        text = piece * (100_000 // len(piece))
        started = time.process_time()
        split_chunks(text, marked=True)
        title(text, marked=True)
        assert time.process_time() - started < 2, piece
