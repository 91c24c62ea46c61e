"""Parsing of SSE, independent of how the data is split."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.features.model.errors import ModelAnswerInvalid
from worker.features.model.wire.chunks import SseParser

LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"data:  c",
        b": ping",
        b"event: x",
        b"id: 1",
        b"error: e",
        b"",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


def parsed(*pieces: bytes) -> list[bytes]:
    parser = SseParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    return found + parser.end()


def test_parsing_of_events() -> None:
    stream = (
        b": hi\n\ndata: a\ndata: b\n\nid: 3\n\ndata:\n\nevent: x\ndata:c\n\nerror: d\n\ndata: e"
    )
    assert parsed(stream) == [b"a\nb", b"", b"c", b'{"error":d}', b"e"]


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(0, 200)))
def test_cuts_make_no_difference(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert parsed(*pieces) == parsed(stream)
    assert parsed(*(stream[n : n + 1] for n in range(len(stream)))) == parsed(stream)


@given(st.lists(LINES))
def test_line_ends_make_no_difference(lines: list[bytes]) -> None:
    assert len({tuple(parsed(end.join([*lines, b""]))) for end in (b"\n", b"\r\n", b"\r")}) == 1


def test_an_event_comes_as_soon_as_it_is_whole() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [b"b"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 200],
        [b"x" * 200],
        [b"data: " + b"x" * 60 + b"\n", b"data: " + b"x" * 60 + b"\n"],
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: " + b"x" * 60, b"x" * 60],
    ],
)
def test_an_event_has_a_size_limit(pieces: list[bytes]) -> None:
    parser = SseParser(most_bytes=100)
    *first, last = pieces
    for piece in first:
        parser.feed(piece)
    with pytest.raises(ModelAnswerInvalid, match="100 bytes"):
        parser.feed(last)


def test_the_number_of_events_is_not_limited() -> None:
    parser = SseParser(most_bytes=100)
    for _ in range(100):
        assert parser.feed(b"data: " + b"x" * 90 + b"\n\n") == [b"x" * 90]
        assert parser.feed(b": ping\n\n") == []
