"""Lists of tools: bounded, and read as they were written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.common.contracts.models import ToolOrigin
from sluice.common.features.tools.listing import (
    MOST_BYTES,
    MOST_DETAIL_BYTES,
    MOST_TOOLS,
    SHORT_DESCRIPTION,
    ListedTool,
    digest_of,
    encode_tools,
    parse_tools,
)


def listed(name: str = "a", **more: Any) -> ListedTool:
    given: dict[str, Any] = {"description": "Does it.", "parameters": {"type": "object"}, **more}
    return ListedTool(name, origin=ToolOrigin.CUSTOM, **given)


def test_a_list_survives_a_round_trip() -> None:
    tools = [listed(), ListedTool("files.read", "ü", {"a": [1]}, ToolOrigin.MCP, "files")]
    raw = encode_tools(tools)
    assert parse_tools(raw) == tools
    assert digest_of(raw) == digest_of(encode_tools(tools)) != digest_of(encode_tools(tools[:1]))
    assert parse_tools(encode_tools([])) == []


def test_the_number_of_tools_is_limited() -> None:
    found = parse_tools(encode_tools(listed(f"t{number}") for number in range(MOST_TOOLS + 5)))
    assert found is not None
    assert len(found) == MOST_TOOLS


@pytest.mark.parametrize("text", ["x", "\u00fc", "\U0001f600", "\x00"])
def test_long_lists_lose_schemas_and_stay_readable(text: str) -> None:
    """Later tools that fit keep theirs."""
    large = {"type": "object", "description": text * 40_000}
    tools = [
        listed(f"t{number:03}" + "x" * 60, description=text * 2000, parameters=large)
        for number in range(MOST_TOOLS - 1)
    ]
    raw = encode_tools([*tools, listed("small")])
    assert len(raw) < MOST_BYTES
    found = parse_tools(raw)
    assert found is not None
    assert len(found) == MOST_TOOLS
    bare = [tool for tool in found if tool.parameters is None]
    assert {len(tool.description) for tool in bare} == {SHORT_DESCRIPTION}
    assert found[-1].parameters == {"type": "object"}
    assert sum(len(json.dumps(tool.parameters)) for tool in found) < 6 * MOST_DETAIL_BYTES


def test_texts_that_are_not_unicode_are_left_out() -> None:
    for tool in (listed(description="\ud800"), listed(parameters={"\ud800": 1})):
        [found] = parse_tools(encode_tools([tool])) or ()
        assert (found.name, found.description, found.parameters) == ("a", "", None)


@pytest.mark.parametrize(
    "raw",
    [None, b"", b"{}", b"[1]", b'[{"name": "a"}]', b"[" * 5000, b" " * (MOST_BYTES + 1),
     encode_tools([listed("n" * 300)])],
)  # fmt: skip
def test_an_invalid_list_is_ignored(raw: bytes | None) -> None:
    assert parse_tools(raw) is None
