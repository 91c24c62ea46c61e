"""Across attempts, rounds and gaps, a client gets exactly the answer, or an error."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.features.openai.chat.stream import PARAGRAPH, AnswerMismatch, ResumableText

FEW = settings(max_examples=80, deadline=None)
texts = st.text("ab", max_size=12)


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these positions."""
    positions = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(positions)]


def feed_attempt(
    resumable: ResumableText, text: list[str], attempt: int, lost: frozenset[int] = frozenset()
) -> str:
    """Feed an attempt; the pieces with these numbers are lost."""
    received = ""
    resumable.begin(attempt)
    for n, delta in enumerate(text, 1):
        if n not in lost:
            received += resumable.feed({"delta": delta, "n": n, "attempt": attempt})
    return received


cuts = st.lists(st.integers(0, 100), max_size=6)
losses = st.frozensets(st.integers(1, 8), max_size=4)


@FEW
@given(text=texts, before=st.integers(0, 12), first=cuts, second=cuts)
def test_a_repeated_attempt_adds_only_the_rest(
    text: str, before: int, first: list[int], second: list[int]
) -> None:
    resumable = ResumableText()
    received = feed_attempt(resumable, pieces(text[:before], first), 1)
    received += feed_attempt(resumable, pieces(text, second), 2)
    assert received + resumable.end(text) == text


@FEW
@given(attempts=st.lists(st.tuples(texts, cuts, losses), min_size=1, max_size=4), missed=losses)
def test_the_client_gets_the_answer_or_an_error(attempts: Any, missed: frozenset[int]) -> None:
    """Each attempt may end early, give another answer, and lose events."""
    resumable = ResumableText()
    received = ""
    try:
        for number, (text, positions, lost) in enumerate(attempts, 1):
            received += feed_attempt(resumable, pieces(text, positions), number, lost)
            if number in missed:
                resumable.mark_gap()
        last = attempts[-1][0]
        assert received + resumable.end(last) == last
    except AnswerMismatch:
        # The received text is the start of an attempt, but not of the last one.
        assert any(text.startswith(received) for text, _, _ in attempts)
        assert received


def test_different_and_shorter_answers_are_a_mismatch() -> None:
    resumable = ResumableText()
    assert feed_attempt(resumable, ["one", " two"], 1) == "one two"
    with pytest.raises(AnswerMismatch):
        feed_attempt(resumable, ["one", " three"], 2)
    resumable = ResumableText()
    feed_attempt(resumable, ["one", " two"], 1)
    assert feed_attempt(resumable, ["one"], 2) == ""
    with pytest.raises(AnswerMismatch):
        resumable.end("one")


def test_events_of_an_older_attempt_are_ignored() -> None:
    resumable = ResumableText()
    feed_attempt(resumable, ["one"], 2)
    assert resumable.feed({"delta": "x", "n": 5, "attempt": 1}) == ""
    assert resumable.end("one two") == " two"


def test_invalid_events_are_ignored() -> None:
    resumable = ResumableText()
    received = [resumable.feed(data) for data in ({"delta": "a"}, {"delta": "b"}, {}, {"delta": 5})]
    assert received == ["a", "b", "", ""]
    assert resumable.feed({"delta": "c", "n": "x", "attempt": 0}) == ""
    assert resumable.feed({"delta": "c", "attempt": "x"}) == ""
    assert resumable.end("abcd") == "cd"


def test_a_round_that_corrects_the_first_one_continues_it() -> None:
    """The model is called again because its answer was not usable."""
    resumable = ResumableText()
    assert resumable.feed({"delta": '{"a":', "n": 1, "attempt": 1}) == '{"a":'
    assert resumable.feed({"delta": '{"a":1}', "n": 2, "attempt": 1, "round": 2}) == "1}"
    assert resumable.end('{"a":1}') == ""
    with pytest.raises(AnswerMismatch):
        resumable.feed({"delta": "no", "n": 3, "attempt": 1, "round": 3})


def agent(*rounds: str) -> ResumableText:
    """Rounds that follow one another."""
    resumable = ResumableText(continuing=True)
    assert feed_rounds(resumable, *rounds) == PARAGRAPH.join(rounds)
    return resumable


def feed_rounds(resumable: ResumableText, *rounds: str, attempt: int = 1, first: int = 1) -> str:
    received = ""
    for n, text in enumerate(rounds, 1):
        data = {"delta": text, "n": n, "attempt": attempt, "round": n + first - 1}
        received += resumable.feed(data)
    return received


def test_rounds_of_an_agent_continue_after_an_interruption() -> None:
    assert agent("let me see", "it is", "4").end("4") == ""
    resumed = agent("let me see", "it i")
    assert feed_rounds(resumed, "it is 4", attempt=2, first=2) == "s 4"
    assert resumed.end("it is 4") == ""
    restarted = agent("let me see", "it i")
    assert feed_rounds(restarted, "let me see", "it is 4", attempt=2) == "s 4"
    with pytest.raises(AnswerMismatch):
        feed_rounds(agent("let me see", "it i"), "let me see now", attempt=2)
    interrupted = agent("let me see")
    interrupted.mark_gap()
    assert feed_rounds(interrupted, "x", first=2) == ""
    assert interrupted.end("it is 4") == f"{PARAGRAPH}it is 4"
