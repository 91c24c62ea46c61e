"""Codecs, the TTL rule and stream ids: any input gives a valid result."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.common import codec
from sluice.common.codec import ttl_or_default

settings.register_profile("sluice", deadline=None, database=None, derandomize=True)
settings.load_profile("sluice")

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_json_round_trip(value: Any) -> None:
    raw = codec.dumps(value)
    assert codec.loads(raw) == value
    assert json.loads(raw) == value


@given(st.integers())
def test_integers_of_any_size_stay_exact(number: int) -> None:
    assert codec.loads(codec.dumps({"n": [number]})) == {"n": [number]}


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30])
def test_big_integers(number: int) -> None:
    assert codec.loads(b'{"a":%d}' % number) == {"a": number}
    assert codec.loads(codec.dumps({"a": number, "b": "ü"})) == {"a": number, "b": "ü"}


@given(JSON)
def test_canonical_json_does_not_depend_on_order(value: Any) -> None:
    shuffled = {"b": value, "a": 1}, {"a": 1, "b": value}
    assert codec.dumps_canonical(shuffled[0]) == codec.dumps_canonical(shuffled[1])


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, b"bytes", "\ud800", {"a": "\udfff"}, lambda: None],
    ids=["object", "set", "bytes", "surrogate", "surrogate-inside", "function"],
)
def test_values_that_json_cannot_represent_are_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        codec.dumps(value)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_dumps_never_writes_invalid_json(odd: float) -> None:
    """Also not if a big integer selects the slow path."""
    for value in ({"a": odd}, {"a": odd, "b": 2**70}):
        try:
            raw = codec.dumps(value)
        except (TypeError, ValueError):
            continue
        assert codec.loads(raw)["a"] is None


@given(st.binary())
def test_loads_raises_value_error_only(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        codec.loads(raw)


@pytest.mark.parametrize("depth", [500, 990, 1023, 5000, 100_000])
@pytest.mark.parametrize("core", [b"1", b"1234567890123456789012"])
def test_deep_json_is_a_value_or_a_value_error(depth: int, core: bytes) -> None:
    raw = b"[" * depth + core + b"]" * depth
    with contextlib.suppress(ValueError):
        codec.loads(raw)
    assert codec.parse_payload(raw) == {"_raw": raw.decode()}


@given(st.binary())
def test_a_payload_is_always_an_object(raw: bytes) -> None:
    assert isinstance(codec.parse_payload(raw), dict)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"a":1}', {"a": 1}),
        (b" {} ", {}),
        (b"", {"_raw": ""}),
        (b"[1]", {"_raw": "[1]"}),
        (b"null", {"_raw": "null"}),
        (b'"text"', {"_raw": '"text"'}),
        (b"{bad", {"_raw": "{bad"}),
        (b'{"a":NaN}', {"_raw": '{"a":NaN}'}),
        (b"\xff{}", {"_raw": "\ufffd{}"}),
        (b'{"_raw":1}', {"_raw": 1}),
    ],
)
def test_payloads(raw: bytes, expected: dict[str, Any]) -> None:
    assert codec.parse_payload(raw) == expected


@given(st.dictionaries(st.binary(max_size=9), st.binary(max_size=30), max_size=9))
def test_any_hash_gives_a_job(fields: dict[bytes, bytes]) -> None:
    job = codec.Job.from_hash(fields)
    assert set(json.loads(job.to_json())) == {
        "job_id", "task", "payload", "status", "created_ts", "updated_ts", "ttl_s", "result",
        "error",
    }  # fmt: skip


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_any_entry_gives_an_event(kind: bytes, ts: bytes, step: bytes, data: bytes) -> None:
    fields = {b"type": kind, b"ts": ts, b"step": step, b"data": data}
    event = codec.Event.from_entry(b"1-1", fields)
    line = codec.dumps(event.body())
    assert set(json.loads(line)) == {"type", "ts", "step", "data"}
    assert b"\n" not in line
    assert b"\r" not in line


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"", None),
        (b"{}", {}),
        (b'{"n":123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        (b'{\n"a": 1}', {"a": 1}),
        (b"not json", {"_raw": "not json"}),
        (b"\xff", {"_raw": "\ufffd"}),
    ],
)
def test_stored_json_is_returned_unchanged(raw: bytes, shown: object) -> None:
    assert json.loads(codec.dumps({"x": codec.json_fragment(raw)})) == {"x": shown}


@pytest.mark.parametrize(
    ("raw", "pair"),
    [
        ("0-0", (0, 0)),
        ("1526919030474-55", (1526919030474, 55)),
        (f"{2**64 - 1}-{2**64 - 1}", (2**64 - 1, 2**64 - 1)),
        *((raw, None) for raw in (f"{2**64}-0", "1", "1-", "-1-1", "1-1\n", " 1-1", "1-1-1")),
        *((raw, None) for raw in ("$", "", "١-٢")),
    ],
)
def test_stream_ids(raw: str, pair: tuple[int, int] | None) -> None:
    assert codec.parse_stream_id(raw) == pair


@pytest.mark.parametrize(
    ("raw", "ttl_s"),
    [
        (b"1", 1),
        (b"2592000", 2592000),
        (60, 60),
        *((raw, 7) for raw in (b"2592001", b"0", b"-1", b"1.5", b"", b"x", b"9" * 5000, None)),
    ],
)
def test_the_ttl_rule(raw: object, ttl_s: int) -> None:
    assert ttl_or_default(raw, 7) == ttl_s


NODE: dict[bytes, Any] = {
    rb'{"a":"\ud800"}': {"a": "\ud800"},
    rb'["\udc00x","\ud83d\ude00",1234567890123456789012]': [
        "\udc00x",
        "😀",
        1234567890123456789012,
    ],
    '{"\\uD800":"ü"}'.encode(): {"\ud800": "ü"},
}


@pytest.mark.parametrize("raw", NODE)
def test_json_of_node_is_read_written_and_shown(raw: bytes) -> None:
    assert codec.loads_node(raw) == NODE[raw]
    assert json.loads(codec.dumps_node(NODE[raw])) == NODE[raw]
    shown = codec.dumps(codec.node_fragment(raw))
    expected = json.dumps(NODE[raw]).replace("\\ud800", "\ufffd").replace("\\udc00", "\ufffd")
    assert codec.loads(shown) == json.loads(expected)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'"\\ud8"', b'["\\ud800",NaN]', b'"\\ud800\n"', b'"\\ud800\xff"',
     b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_000 + b"]"],
)  # fmt: skip
def test_invalid_json_is_invalid_for_node_too(raw: bytes) -> None:
    with pytest.raises(ValueError):
        codec.loads_node(raw)
    shown = codec.node_fragment(raw, empty="none")
    assert shown == ("none" if not raw else {"_raw": codec.decode_text(raw)})


@pytest.mark.parametrize("value", [object(), {1}, {"a": "\ud800", "b": b""}])
def test_values_without_json_are_a_type_error_for_node_too(value: object) -> None:
    with pytest.raises(TypeError):
        codec.dumps_node(value)
