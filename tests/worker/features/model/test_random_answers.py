"""Model servers with random JSON: an answer is parsed or refused, and no other error is raised."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.worker.features.model.errors import ModelAnswerInvalid
from sluice.worker.features.model.wire.chunks import SseParser, find_error, parse_chunk, parse_json
from sluice.worker.features.model.wire.embeddings import _vectors

USUAL = settings(deadline=None, database=None, derandomize=True, max_examples=300)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -1, 0, 1 << 63, "0", "stop", "\ud800", "\0", "", "text"]),
    st.floats(),
    st.text(max_size=6),
)
ANYTHING: Any = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def objects(**members: Any) -> Any:
    """Objects with some of these members, each valid or not; or anything."""
    return (
        st.fixed_dictionaries(
            {}, optional={name: values | ANYTHING for name, values in members.items()}
        )
        | ANYTHING
    )


CALLS = objects(
    index=LEAVES, id=LEAVES, function=objects(name=LEAVES, arguments=st.just('{"a":1}') | ANYTHING)
)
DELTAS = objects(
    content=st.text(max_size=5) | st.lists(objects(text=LEAVES), max_size=2),
    reasoning_content=LEAVES,
    tool_calls=st.lists(CALLS, max_size=2),
)
CHOICES = objects(index=st.just(0), delta=DELTAS, message=DELTAS, finish_reason=LEAVES)
CHUNKS = objects(
    choices=st.lists(CHOICES, max_size=2),
    error=objects(message=LEAVES, code=LEAVES, detail=LEAVES),
    usage=objects(
        prompt_tokens=LEAVES, completion_tokens=LEAVES, prompt_tokens_details=objects(x=LEAVES)
    ),
    timings=objects(predicted_per_second=LEAVES, prompt_n=LEAVES, cache_n=LEAVES),
    prompt_progress=objects(total=LEAVES, processed=LEAVES),
    model=LEAVES,
)
VECTORS = objects(
    data=st.lists(
        objects(
            index=st.integers(0, 2) | LEAVES,
            embedding=st.lists(LEAVES, min_size=1, max_size=3)
            | st.lists(st.floats(), min_size=1, max_size=2),
        ),
        max_size=3,
    )
)


@USUAL
@given(CHUNKS)
def test_any_chunk_is_parsed_or_refused(value: Any) -> None:
    with contextlib.suppress(ModelAnswerInvalid):
        chunk = parse_chunk(parse_json(json.dumps(value).encode()))
        assert isinstance(chunk.text + chunk.reasoning, str)
        assert all(isinstance(call.arguments, str) for call in chunk.calls)


@USUAL
@given(VECTORS, st.integers(1, 3))
@example({"data": [{"embedding": [10**400]}]}, 1)
def test_any_vectors_are_finite_or_refused(value: Any, count: int) -> None:
    with contextlib.suppress(ModelAnswerInvalid):
        vectors = _vectors(parse_json(json.dumps(value).encode()), count)
        assert len(vectors) == count
        assert all(math.isfinite(number) for vector in vectors for number in vector)


@USUAL
@given(
    st.lists(st.binary(max_size=30) | st.sampled_from([b"data: {", b"error: x", b"\r", b"\n\n"]))
)
def test_any_stream_has_events_or_is_refused(pieces: list[bytes]) -> None:
    parser = SseParser(most_bytes=100)
    with contextlib.suppress(ModelAnswerInvalid):
        for event in [event for piece in pieces for event in parser.feed(piece)] + parser.end():
            find_error(parse_json(event))
