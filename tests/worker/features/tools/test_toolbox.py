"""The toolbox: available tools, access, and construction from functions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from common.errors import SettingsError
from tests.support.worker.tools import ANYTHING, CountedTools
from worker.features.tools.errors import InvalidArguments, ToolUnavailable, UnknownTool
from worker.features.tools.tool import Call, make_tool
from worker.features.tools.toolbox import ToolBox


class Note(BaseModel):
    text: str = Field(min_length=1)
    tags: list[str] = []

    @field_validator("tags")
    @classmethod
    def _lower(cls, value: list[str]) -> list[str]:
        if any(tag != tag.lower() for tag in value):
            raise ValueError("tags are lower case")
        return value


def note(call: Call, arguments: Note) -> str:
    """Keeps a note.

    More about it.
    """
    return arguments.text


async def anything(call: Call, arguments: dict[str, Any]) -> Any:
    return arguments


class FakeSource:
    """A source whose tools change."""

    def __init__(self) -> None:
        self.tools: dict[str, Any] = {}
        self.unavailable_reason = ""


def toolbox_with(*names: str, selection: str = "all") -> ToolBox:
    toolbox = ToolBox(selection)
    for name in names:
        toolbox.add(anything, name=name, description="x", parameters=ANYTHING)
    return toolbox


def test_a_function_with_a_model_needs_nothing_else() -> None:
    tool = make_tool(note)
    assert tool.name == "note"
    assert tool.description == "Keeps a note.\n\nMore about it."
    assert tool.parameters["required"] == ["text"]
    assert tool.parse({"text": "a"}) == Note(text="a")
    assert not tool.is_async
    assert not tool.safe_to_repeat


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [({}, "at \"\": 'text' is a required property"), ({"text": 5}, 'at "/text": '),
     ({"text": "a", "tags": ["A"]}, 'at "/tags": tags are lower case'), ([], 'at "": ')],
)  # fmt: skip
def test_invalid_arguments_are_reported_with_their_location(arguments: Any, fault: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        make_tool(note).parse(arguments)
    assert str(caught.value).startswith("note: ")
    assert fault in str(caught.value)


def test_the_decorator_registers_and_leaves_the_function_alone() -> None:
    toolbox = ToolBox()

    @toolbox.tool(repeatable=True, timeout_s=3)
    def shout(call: Call, arguments: Note) -> str:
        """Says it loudly."""
        return arguments.text.upper()

    assert shout(Call("job", "job:call"), Note(text="a")) == "A"
    assert toolbox.find("shout").repeatable
    assert toolbox.timeout_s(toolbox.find("shout")) == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "no spaces", "parameters": ANYTHING}, "not a valid tool name"),
        ({"name": "x" * 65, "parameters": ANYTHING}, "not a valid tool name"),
        ({"name": "_hidden", "parameters": ANYTHING}, "not a valid tool name"),
        ({"name": "a..b", "parameters": ANYTHING}, "not a valid tool name"),
        ({"parameters": {"type": "array"}}, '"object"'),
        ({"parameters": {"type": "object", "required": 1}}, "required"),
        ({"parameters": {"type": "object", "$ref": "http://a/b"}}, "only #/"),
        ({}, "declare its arguments"),
        ({"parameters": ANYTHING, "description": ""}, "add a description"),
        ({"parameters": ANYTHING, "timeout_s": 0}, "timeout_s"),
        ({"name": "sluice.x", "parameters": ANYTHING}, "reserved"),
        ({"name": "workflow.step", "parameters": ANYTHING}, "reserved"),
        ({"name": "image.process", "parameters": ANYTHING}, "reserved"),
    ],
)
def test_an_incomplete_tool_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ToolBox().add(anything, **{"description": "x", **options})


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b, c: 1, print])
def test_a_function_with_other_parameters_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match=r"must take \(call, arguments\)"):
        make_tool(function, name="x", description="x", parameters=ANYTHING)


def test_forbidden_and_missing_tools_are_indistinguishable() -> None:
    toolbox = toolbox_with("a", "b", "secret")
    allowed = frozenset({"a", "b"})
    assert toolbox.names(allowed) == ["a", "b"]
    assert toolbox.find("a", allowed).name == "a"
    texts = []
    for name in ("secret", "absent"):
        with pytest.raises(UnknownTool) as caught:
            toolbox.find(name, allowed)
        texts.append(str(caught.value).replace(name, "…"))
        assert caught.value.kind == "unknown_tool"
    assert texts[0] == texts[1]
    assert texts[0].endswith("available: a, b")
    with pytest.raises(UnknownTool, match="available: none"):
        toolbox.find("a", frozenset())
    for name in ("sluice.step", "workflow.step", "image.process"):  # reserved
        with pytest.raises(UnknownTool):
            CountedTools().toolbox.find(name)
    source = FakeSource()
    source.unavailable_reason = "it is down"
    toolbox.add_source("files", source)
    with pytest.raises(UnknownTool):
        toolbox.find("files.read", allowed)


def test_tools_of_a_source_come_and_go() -> None:
    toolbox, source = ToolBox("files.read"), FakeSource()
    toolbox.add_source("files", source)
    toolbox.check()  # the source may still provide it
    source.unavailable_reason = "it is starting"
    with pytest.raises(ToolUnavailable, match="it is starting"):
        toolbox.find("files.read")
    source.tools["files.read"] = make_tool(
        anything, name="files.read", description="x", parameters=ANYTHING
    )
    source.tools["files.write"] = source.tools["files.read"]
    assert toolbox.find("files.read").name == "files.read"
    assert toolbox.names() == ["files.read"]
    with pytest.raises(UnknownTool):
        toolbox.find("files.write")  # not in TOOLS
    source.unavailable_reason = ""
    source.tools.clear()
    with pytest.raises(UnknownTool):
        toolbox.find("files.read")


def test_the_selection_chooses_tools() -> None:
    assert toolbox_with("a", "a").names() == ["a"]
    assert toolbox_with("a", "b").names() == ["a", "b"]
    assert toolbox_with("a", "b", selection="none").names() == []
    assert toolbox_with("a", "b", selection=" b , ").names() == ["b"]
    toolbox = toolbox_with("a", "b", selection="a,c")
    with pytest.raises(SettingsError, match=r"TOOLS names 'c'.*available: a, b, all and none"):
        toolbox.check()
    for fine in ("all", "none", "a", "a,b"):
        toolbox_with("a", "b", selection=fine).check()
    toolbox = toolbox_with("files.read")
    assert toolbox.find("files.read").wire_name == "files__read"
    with pytest.raises(ValueError, match="the same name in model requests"):
        toolbox.add(anything, name="files__read", description="x", parameters=ANYTHING)
