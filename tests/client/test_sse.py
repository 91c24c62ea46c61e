"""Server-sent events out of bytes that come in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.core import sse
from client.core.sse import Message, Parser
from client.errors import BadAnswer

WHOLE = (
    b": hb 1\n\nretry: 1500\nevent: hello\ndata: {}\n\n"
    b"id: 1-0\r\nevent: message\r\ndata: \xc3\xa4\r\ndata:  two\r\n\r\n"
    b"data\n\nunknown: x\nid\nevent: done\ndata: \xff\n\n"
    b"id: 9-0\nevent: unfinished\ndata: lost\n"
)
FOUND = [
    Message("", "hello", "{}"),
    Message("1-0", "message", "ä\n two"),
    Message("", "message", ""),
    Message("", "done", "\ufffd"),
]


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12))
def test_any_pieces_make_the_same_messages(cuts: list[int]) -> None:
    parser, found, at = Parser(), [], 0
    for cut in [*sorted(cuts), len(WHOLE)]:
        found += parser.feed(WHOLE[at:cut])
        at = cut
    assert found == FOUND
    assert parser.retry_s == 1.5


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_break_it(noise: bytes, size: int) -> None:
    parser = Parser()
    found = [m for at in range(0, len(noise), size) for m in parser.feed(noise[at : at + size])]
    parser.feed(b"\n\n")
    assert parser.feed(b"id: 1\nevent: e\ndata: d\n\n") == [Message("1", "e", "d")]
    assert all(isinstance(message, Message) for message in found)


def test_heartbeats_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 100)
    parser = Parser()
    for _ in range(100):
        assert parser.feed(b": hb 1760000000000\n\n") == []
        assert len(parser.feed(b"event: e\ndata: d\n\n")) == 1


@pytest.mark.parametrize("piece", [b"x" * 60, b"data: y\n" * 6])
def test_an_event_has_bounds(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(sse, "MOST_BYTES", 100)
    parser = Parser()
    assert parser.feed(piece) == []
    with pytest.raises(BadAnswer):
        parser.feed(piece * 2)


@pytest.mark.parametrize("value", ["-1", "1e9", "", "ten", "٣"])
def test_a_pause_that_is_none(value: str) -> None:
    parser = Parser()
    parser.feed(f"retry: {value}\n\n".encode())
    assert parser.retry_s is None
