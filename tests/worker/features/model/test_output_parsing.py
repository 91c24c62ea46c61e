"""JSON in answers, and SSE independent of how the data is split."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.features.model.errors import ModelAnswerInvalid
from worker.features.model.output_parsing import NoJsonFound, find_json, nesting_depth
from worker.features.model.wire.chunks import SseParser

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (' {"a": 1}\n', {"a": 1}),
        ("```json\n[1]\n```", [1]),
        ("```\n[1]\n```\nand\n```json\n[1, 2]\n```", [1, 2]),
        ("```python\n[3]\n```\n{}", [3]),
        ('As in [1], {"a": [1, 2]} it is.', {"a": [1, 2]}),
        ('<think>Is it {"b": 2}? No.</think>{"a": 1}', {"a": 1}),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ('"x"', "x"),
        ('{"a": "\ud83d"}', {"a": "?"}),
    ],
)
def test_json_is_found(text: str, value: Any) -> None:
    assert find_json(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "   ", "no", "{", '{"a": NaN}', "[1,", "{'a': 1}", "[" * 100_000, "{" * 100_000,
     "[" * 65 + "]" * 65],
)  # fmt: skip
def test_text_without_json(text: str) -> None:
    with pytest.raises(NoJsonFound):
        find_json(text)


@given(values, st.sampled_from(["{}", "```json\n{}\n```", "Well:\n\n```\n{}\n```\nThat is it."]))
def test_any_value_in_any_text(value: Any, around: str) -> None:
    assert find_json(around.replace("{}", json.dumps(value))) == value


@given(st.text(alphabet='[]{}",:1a \n`'))
def test_any_text(text: str) -> None:
    with contextlib.suppress(NoJsonFound):
        json.dumps(find_json(text))


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"data:  c", b": ping", b"event: x", b"id: 1", b"error: e",
     b""]
)  # fmt: skip
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
    parser = SseParser()  # an event comes as soon as it is whole
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [b"b"]


@given(st.lists(st.tuples(LINES, ENDS)), st.lists(st.integers(0, 200)))
def test_cuts_and_line_ends_make_no_difference(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in lines)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert parsed(*pieces) == parsed(stream)
    assert parsed(*(stream[n : n + 1] for n in range(len(stream)))) == parsed(stream)
    alike = {
        tuple(parsed(b"".join(line + end for line, _ in lines))) for end in (b"\n", b"\r\n", b"\r")
    }
    assert len(alike) == 1


def test_the_size_of_an_event_is_limited() -> None:
    for *first, last in (
        [b"data: " + b"x" * 200],
        [b"x" * 200],
        [b"data: " + b"x" * 60 + b"\n", b"data: " + b"x" * 60 + b"\n"],
        [b"data: " + b"x" * 200 + b"\n\n"],
        [b"data: " + b"x" * 60, b"x" * 60],
    ):
        parser = SseParser(most_bytes=100)
        for piece in first:
            parser.feed(piece)
        with pytest.raises(ModelAnswerInvalid, match="100 bytes"):
            parser.feed(last)
    parser = SseParser(most_bytes=100)
    for _ in range(100):  # but not their number
        assert parser.feed(b"data: " + b"x" * 90 + b"\n\n") == [b"x" * 90]
        assert parser.feed(b": ping\n\n") == []


def test_depth() -> None:
    assert [nesting_depth(value) for value in (1, [], {"a": []}, [[], {"a": [[]]}])] == [0, 1, 2, 4]
