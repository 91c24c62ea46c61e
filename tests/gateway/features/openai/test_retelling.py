"""Across attempts, rounds and gaps, a client gets exactly the answer, or an error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.openai.chat.stream import PARAGRAPH, AnswerMismatch, ResumableText

FEW = settings(max_examples=150, deadline=None)
letters = st.text("ab", max_size=12)


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text in pieces."""
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


def tell(
    retelling: ResumableText, text: list[str], attempt: int, lost: frozenset[int] = frozenset()
) -> str:
    """Feed an attempt; the pieces with these numbers are lost."""
    heard = ""
    retelling.begin(attempt)
    for n, delta in enumerate(text, 1):
        if n not in lost:
            heard += retelling.feed({"delta": delta, "n": n, "attempt": attempt})
    return heard


cuts = st.lists(st.integers(0, 100), max_size=6)
losses = st.frozensets(st.integers(1, 8), max_size=4)


@FEW
@given(text=letters, before=st.integers(0, 12), first=cuts, second=cuts)
def test_an_attempt_that_repeats_itself(
    text: str, before: int, first: list[int], second: list[int]
) -> None:
    retelling = ResumableText()
    heard = tell(retelling, pieces(text[:before], first), 1)
    heard += tell(retelling, pieces(text, second), 2)
    assert heard + retelling.end(text) == text


@FEW
@given(attempts=st.lists(st.tuples(letters, cuts, losses), min_size=1, max_size=4), missed=losses)
def test_never_anything_but_the_answer(attempts: Any, missed: frozenset[int]) -> None:
    """Each attempt may end early, give another answer, and lose events."""
    retelling = ResumableText()
    heard = ""
    try:
        for number, (text, places, lost) in enumerate(attempts, 1):
            heard += tell(retelling, pieces(text, places), number, lost)
            if number in missed:
                retelling.mark_gap()
        last = attempts[-1][0]
        assert heard + retelling.end(last) == last
    except AnswerMismatch:
        # What was heard is the beginning of some attempt, and not of the last one.
        assert any(text.startswith(heard) for text, _, _ in attempts)
        assert heard


def test_another_answer() -> None:
    retelling = ResumableText()
    assert tell(retelling, ["one", " two"], 1) == "one two"
    with pytest.raises(AnswerMismatch):
        tell(retelling, ["one", " three"], 2)


def test_a_shorter_answer() -> None:
    retelling = ResumableText()
    tell(retelling, ["one", " two"], 1)
    assert tell(retelling, ["one"], 2) == ""
    with pytest.raises(AnswerMismatch):
        retelling.end("one")


def test_a_late_word_of_a_dead_attempt() -> None:
    retelling = ResumableText()
    tell(retelling, ["one"], 2)
    assert retelling.feed({"delta": "x", "n": 5, "attempt": 1}) == ""
    assert retelling.end("one two") == " two"


def test_a_lost_piece_is_made_up_for_at_the_end() -> None:
    retelling = ResumableText()
    assert tell(retelling, ["a", "b", "c", "d"], 1, frozenset({2})) == "a"
    assert retelling.end("abcd") == "bcd"


def test_events_of_foreign_hands() -> None:
    retelling = ResumableText()
    heard = [retelling.feed(data) for data in ({"delta": "a"}, {"delta": "b"}, {}, {"delta": 5})]
    assert heard == ["a", "b", "", ""]
    assert retelling.feed({"delta": "c", "n": "x", "attempt": 0}) == ""
    assert retelling.feed({"delta": "c", "attempt": "x"}) == ""
    assert retelling.end("abcd") == "cd"


def test_a_round_that_mends_the_first_one() -> None:
    """The model is asked again because its answer could not be used."""
    retelling = ResumableText()
    assert retelling.feed({"delta": '{"a":', "n": 1, "attempt": 1}) == '{"a":'
    assert retelling.feed({"delta": '{"a":1}', "n": 2, "attempt": 1, "round": 2}) == "1}"
    assert retelling.end('{"a":1}') == ""
    with pytest.raises(AnswerMismatch):
        retelling.feed({"delta": "no", "n": 3, "attempt": 1, "round": 3})


class TestAgent:
    """Rounds that follow one another."""

    def told(self, *rounds: str, attempt: int = 1, first: int = 1) -> tuple[ResumableText, str]:
        retelling = ResumableText(continuing=True)
        return retelling, self.tell(retelling, *rounds, attempt=attempt, first=first)

    def tell(self, retelling: ResumableText, *rounds: str, attempt: int, first: int = 1) -> str:
        heard = ""
        for n, text in enumerate(rounds, 1):
            data = {"delta": text, "n": n, "attempt": attempt, "round": n + first - 1}
            heard += retelling.feed(data)
        return heard

    def test_in_a_row(self) -> None:
        retelling, heard = self.told("let me see", "it is", "4")
        assert heard == PARAGRAPH.join(["let me see", "it is", "4"])
        assert retelling.end("4") == ""

    def test_a_resumed_one_begins_where_it_was(self) -> None:
        retelling, _ = self.told("let me see", "it i")
        assert self.tell(retelling, "it is 4", attempt=2, first=2) == "s 4"
        assert retelling.end("it is 4") == ""

    def test_one_that_begins_anew(self) -> None:
        retelling, _ = self.told("let me see", "it i")
        assert self.tell(retelling, "let me see", "it is 4", attempt=2) == "s 4"

    def test_one_that_says_more_in_the_first_round(self) -> None:
        retelling, _ = self.told("let me see", "it i")
        with pytest.raises(AnswerMismatch):
            self.tell(retelling, "let me see now", attempt=2)

    def test_a_lost_round(self) -> None:
        retelling, _ = self.told("let me see")
        retelling.mark_gap()
        assert self.tell(retelling, "x", attempt=1, first=2) == ""
        assert retelling.end("it is 4") == f"{PARAGRAPH}it is 4"
