"""BM25: scores equal the formula, the pruning changes nothing, and the cost stays small."""

from __future__ import annotations

import math
import random
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.features.rag.index.bm25 import K1, B, Bm25Index

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


@settings(max_examples=300)
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

    def chunk() -> Counter[str]:
        picks = (int(5000 * generator.random() ** 4) for _ in range(80))
        return Counter({"every": 1, **Counter(vocabulary[pick] for pick in picks)})

    index = Bm25Index()
    took = {}
    for size in (1_000, 10_000):
        while len(index) < size:
            index.add(chunk())
        started = time.process_time()
        for number in range(50):
            index.search([["every"], [f"w{4000 + number}"], [f"w{4900 - number}"], ["w0"]], 10)
        took[size] = (time.process_time() - started) / 50
    assert took[10_000] < 0.05
    assert index.size_bytes < 200_000_000
