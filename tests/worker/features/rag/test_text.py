"""Chunks and sentences, the terms of a text, and BM25."""

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.worker.features.rag.index.bm25 import K1, B, Bm25Index
from sluice.worker.features.rag.parsing.outline import HEADING_CHARS, headings, paths, title
from sluice.worker.features.rag.text import chunking
from sluice.worker.features.rag.text.chunking import split_chunks, split_sentences
from sluice.worker.features.rag.text.languages import COMMON_WORDS, detect_language
from sluice.worker.features.rag.text.terms import MOST_WORDS, query_terms, terms

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
    before = chunking.Span(-1, -1)
    for span in found:
        quote = text[span.start : span.end]
        assert quote == quote.strip() != ""
        assert 0 < len(quote) <= chunking.MAX_CHARS
        assert span.start > before.start
        assert span.end > before.end
        assert before.end - span.start <= chunking.OVERLAP_CHARS  # the overlap is bounded
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
                assert run > chunking.MAX_CHARS


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
    sizes = [span.end - span.start for span in found[:-1]]
    assert all(chunking.TARGET_CHARS * 0.7 < size <= chunking.MAX_CHARS for size in sizes)
    wall = "This sentence has forty-four characters, ok. " * 100
    spans = split_chunks(wall)
    assert len(spans) > 3
    for one, two in pairwise(spans):
        assert 0 < one.end - two.start <= chunking.OVERLAP_CHARS
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


# -- terms -------------------------------------------------------------------------------------


def words(text: str, language: str = "en") -> list[str]:
    return list(terms(text, language))


@pytest.mark.parametrize(
    ("text", "found"),
    [("Running runs", ["en:run", "en:run"]),
     ("MAX_INFLIGHT", ["max_inflight", "en:max", "en:inflight"]),
     ("job_id", ["job_id", "en:job", "en:id"]), ("__init__", ["__init__", "en:init"]),
     ("HTTPServer", ["httpserver", "en:http", "en:server"]),
     ("camelCase", ["camelcase", "en:camel", "en:case"]), ("sha256", ["sha256", "en:sha", "256"]),
     ("v8.2.3 and 3,14", ["v8", "en:v", "8", "2.3", "2", "3", "en:and", "3,14", "3", "14"]),
     ("it's l'eau don't", ["en:it", "en:eau", "en:don"]),
     ("café CAFÉ cafe\u0301 cafe", ["en:cafe"] * 4), ("ﬁnd", ["en:find"]),
     ("東京都", ["東", "京", "都", "東京", "京都"]), ("文", ["文"]),
     ("Redisは速い", ["en:redi", "は", "速", "い", "は速", "速い"]), ("_ ___ - !", []),
     ("x" * 500, ["en:" + "x" * 64]), ("re\u00adli\u00adable", ["en:re", "en:li", "en:abl"])],
)  # fmt: skip
def test_terms(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_other_languages_have_other_stems() -> None:
    assert words("Häuser Haus", "de") == ["de:haus", "de:haus"]
    assert words("Straße STRASSE", "de") == ["de:strass", "de:strass"]
    assert len(set(words("chanter chantait chante", "fr"))) == 1
    assert len(set(words("книга книги книгу", "ru"))) == 1
    assert words("हिन्दी भाषा")[0] != words("हिन भाषा")[0]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The cat is on the roof and it does not want to come down.", "en"),
        ("Der Hund ist nicht auf dem Dach, und die Katze auch nicht.", "de"),
        ("Le chat est sur la table et il ne mange pas dans la maison.", "fr"),
        ("El perro es de la casa y no se va por la noche con los otros.", "es"),
        ("Il cane è della casa e non si muove per la notte con gli altri.", "it"),
        ("O cão não é da casa e as crianças são do vizinho.", "pt"),
        ("De hond is van het huis en hij wordt niet door de buren gezien.", "nl"),
        ("Hunden är inte på taket och det är bra att han sover.", "sv"),
        ("Собака не на крыше, и она как кошка, что спит.", "ru"),
        ("def main(): return 1", "en"),
        ("", "en"),
        ("東京都は日本の首都です。", "en"),
    ],
)
def test_languages(text: str, language: str) -> None:
    assert detect_language(text) == language


def test_each_word_is_searched_in_all_languages() -> None:
    [group] = query_terms("Häuser", {"en", "de"})
    assert set(group) == {"de:haus", "en:hauser", "hauser"}
    assert query_terms("job jobs", {"en"}) == [("en:job", "job", "jobs")]
    assert query_terms("iPhone iphone", {"en"})[0] == ("iphone",)
    assert ("en:iphon", "iphone") in query_terms("iphone", {"en"})
    assert query_terms("京", {"en"}) == [("京",)]
    assert query_terms("東京都", {"en"}) == [("東京",), ("京都",)]
    assert query_terms("8.2", {"en"}) == [("8.2",)]
    # Common words count only alone.
    assert query_terms("what is the lease", {"en"}) == [("en:leas", "lease")]
    assert len(query_terms("what is the", {"en"})) == 3
    assert query_terms("", {"en"}) == []
    assert len(query_terms(" ".join(f"w{n}x" for n in range(500)), {"en"})) == MOST_WORDS


@given(st.text(max_size=200), st.sampled_from(sorted(COMMON_WORDS)))
def test_any_text_has_terms_that_a_query_for_it_finds(text: str, language: str) -> None:
    held = set(terms(text, language))
    for group in query_terms(text, {language}):
        assert held & set(group)


# -- BM25: scores equal the formula, and pruning changes nothing ----------------------------------

LETTERS = "abcdefgh"
CHUNKS = st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=30)


def index_of(chunks: list[str]) -> Bm25Index:
    index = Bm25Index()
    for number, chunk in enumerate(chunks):
        assert index.add(Counter(chunk)) == number
    return index


def reference_scores(chunks: list[str], query: list[str]) -> dict[int, float]:
    average = sum(map(len, chunks)) / len(chunks)
    scores: dict[int, float] = {}
    for word in query:
        holders = [number for number, chunk in enumerate(chunks) if word in chunk]
        idf = math.log(1 + (len(chunks) - len(holders) + 0.5) / (len(holders) + 0.5))
        for number in holders:
            count, length = chunks[number].count(word), len(chunks[number])
            norm = K1 * (1 - B + B * length / average)
            scores[number] = scores.get(number, 0.0) + idf * count * (K1 + 1) / (count + norm)
    return scores


@given(CHUNKS, st.lists(st.sampled_from(LETTERS), min_size=1, max_size=6, unique=True))
def test_scores_are_those_of_the_formula(chunks: list[str], query: list[str]) -> None:
    expected = reference_scores(chunks, query)
    found = index_of(chunks).search([[word] for word in query], len(chunks))
    assert {number for number, _ in found} == set(expected)
    for number, score in found:
        assert score == pytest.approx(expected[number])
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


@given(CHUNKS, st.lists(st.sampled_from(LETTERS + "xyz"), min_size=1, max_size=6, unique=True))
def test_shares_are_fractions_of_the_whole_query(chunks: list[str], query: list[str]) -> None:
    index, words = index_of(chunks), [[word] for word in query]
    scores, shares = index.search(words, len(chunks)), index.shares(words, len(chunks))
    assert [number for number, _ in shares] == [number for number, _ in scores]
    assert all(0 < share < 1 for _, share in shares)
    # A word that no chunk contains reduces every share but does not change the order.
    more = index.shares([*words, ["nowhere"]], len(chunks))
    assert [number for number, _ in more] == [number for number, _ in shares]
    assert all(less < share for (_, less), (_, share) in zip(more, shares))


@given(
    CHUNKS,
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8, unique=True),
    st.integers(1, 5),
)
def test_pruning_finds_the_same_chunks(chunks: list[str], query: list[str], most: int) -> None:
    everything = index_of(chunks).search([[word] for word in query], len(chunks))
    best = index_of(chunks).search([[word] for word in query], most)
    assert [round(score, 9) for _, score in best] == [
        round(score, 9) for _, score in everything[:most]
    ]


@given(CHUNKS, st.data())
def test_removed_chunks_are_not_found_before_or_after_compact(
    chunks: list[str], data: st.DataObject
) -> None:
    index = index_of(chunks)
    gone = data.draw(st.sets(st.integers(0, len(chunks) - 1)))
    index.remove(gone)
    index.remove(gone)
    left = [chunk for number, chunk in enumerate(chunks) if number not in gone]
    assert len(index) == len(left)
    every = [[letter] for letter in LETTERS]
    before = {number for number, _ in index.search(every, 100)}
    assert before == set(range(len(chunks))) - gone
    renumbered = index.compact()
    assert index.wasted == 0
    found = index.search(every, 100)
    assert {number for number, _ in found} == {renumbered[number] for number in before}
    if left:
        expected = reference_scores(left, list(LETTERS))
        for number, score in found:
            assert score == pytest.approx(expected[number])


def test_terms_of_one_word_count_together() -> None:
    index = Bm25Index()
    index.add({"en:run": 1, "x": 1})
    index.add({"de:run": 1, "x": 1})
    index.add({"en:run": 1, "de:run": 1})
    found = dict(index.search([["en:run", "de:run"]], 3))
    assert found[0] == found[1]
    assert found[2] > found[0]
    assert index.search([["nobody"]], 3) == []
    assert index.search([], 3) == []


def test_a_large_index_is_searched_quickly() -> None:
    """With a rare word among common ones, most chunks of the common ones are not visited."""
    generator = random.Random(1)
    vocabulary = [f"w{number}" for number in range(5000)]
    index = Bm25Index()
    for _ in range(5_000):
        picks = (int(5000 * generator.random() ** 4) for _ in range(80))
        index.add(Counter({"every": 1, **Counter(vocabulary[pick] for pick in picks)}))
    started = time.process_time()
    for number in range(50):
        index.search([["every"], [f"w{4000 + number}"], [f"w{4900 - number}"], ["w0"]], 10)
    assert (time.process_time() - started) / 50 < 0.025
    assert index.size_bytes < 100_000_000
