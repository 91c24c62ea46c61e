"""Finding JSON in answers."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.features.model.output_parsing import NoJsonFound, find_json, nesting_depth

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
    [
        "",
        "   ",
        "no",
        "{",
        '{"a": NaN}',
        "[1,",
        "{'a': 1}",
        "[" * 100_000,
        "{" * 100_000,
        "[" * 65 + "]" * 65,
    ],
)
def test_text_without_json(text: str) -> None:
    with pytest.raises(NoJsonFound):
        find_json(text)


def test_depth() -> None:
    assert [nesting_depth(value) for value in (1, [], {"a": []}, [[], {"a": [[]]}])] == [0, 1, 2, 4]


@given(values, st.sampled_from(["{}", "```json\n{}\n```", "Well:\n\n```\n{}\n```\nThat is it."]))
def test_any_value_in_any_text(value: Any, around: str) -> None:
    assert find_json(around.replace("{}", json.dumps(value))) == value


@given(st.text(alphabet='[]{}",:1a \n`'))
def test_any_text(text: str) -> None:
    with contextlib.suppress(NoJsonFound):
        json.dumps(find_json(text))
