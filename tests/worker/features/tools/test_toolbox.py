"""The toolbox: its tools and their sources: functions, user modules, TOOLS and MCP_SERVERS."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator

from sluice.common.errors import SettingsError
from sluice.common.settings.base import load_settings
from sluice.common.settings.worker import WorkerSettings
from sluice.worker.execution.checkpoints import MAX_STEPS
from sluice.worker.features.agent.types import AgentLimits
from sluice.worker.features.tools.errors import InvalidArguments, ToolUnavailable, UnknownTool
from sluice.worker.features.tools.mcp import config
from sluice.worker.features.tools.tool import Call, make_tool
from sluice.worker.features.tools.toolbox import ToolBox
from sluice.worker.main import build_registry
from sluice.worker.registry import Registry
from tests.support.worker.tools import ANYTHING, CountedTools


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


TOOL = """
def shout(call, arguments):
    "Says it loudly."
    return arguments["text"].upper()

def register_tools(toolbox):
    toolbox.add(shout, parameters={"type": "object"})
"""
HANDLER = """
async def chat(context, payload): ...

def register(registry):
    registry.add("chat", chat)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Registry]]:
    """Writes a user module and names it in WORKER_HANDLERS."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"tools_of_{tmp_path.name.replace('-', '_')}"

    def write(source: str) -> Registry:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        monkeypatch.setenv("WORKER_HANDLERS", name)
        return build_registry(load_settings(WorkerSettings))

    yield write
    sys.modules.pop(name, None)


def test_a_module_may_bring_tools_handlers_or_both(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "shout" in module(TOOL).toolbox.names()
    registry = module(TOOL + HANDLER)
    assert "shout" in registry.toolbox.names()
    assert registry.resolve("chat").function.__name__ == "chat"
    monkeypatch.setenv("TOOLS", "shout,now")
    assert module(TOOL).toolbox.names() == ["now", "shout"]


@pytest.mark.parametrize(
    "source",
    [
        "register_tools = 5",
        "def register_tools(toolbox): toolbox.add(print)",
        "def register_tools(toolbox): toolbox.add(lambda call, arguments: 1)",
    ],
)
def test_a_module_with_bad_tools_is_a_settings_error(module: Any, source: str) -> None:
    with pytest.raises(SettingsError, match="WORKER_HANDLERS names 'tools_of_"):
        module(source)


def test_the_setting_tools_with_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLS", "hammer")
    with pytest.raises(SettingsError, match=r"TOOLS names 'hammer'.*calculator"):
        build_registry(load_settings(WorkerSettings))
    monkeypatch.setenv("TOOLS", "none")
    assert build_registry(load_settings(WorkerSettings)).toolbox.names() == []


def test_calls_are_limited_by_the_saved_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AgentLimits.of(load_settings(WorkerSettings)) == AgentLimits(8, 16, 300.0)
    monkeypatch.setenv("AGENT_MAX_CALLS", "1000")
    monkeypatch.setenv("AGENT_MAX_ROUNDS", "100")
    limits = AgentLimits.of(load_settings(WorkerSettings))
    assert limits.calls + limits.rounds < MAX_STEPS


@pytest.fixture
def servers(tmp_path: Path) -> Callable[[Any], dict[str, Any]]:
    def read(content: Any) -> dict[str, Any]:
        path = tmp_path / "mcp.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return dict(config.load(str(path)))

    return read


def test_servers_are_read(servers: Any) -> None:
    found = servers(
        {
            "theme": "dark",  # of another program
            "mcpServers": {
                "files": {"command": "mcp-files", "args": ["/srv"], "env": {"A": "b"}, "cwd": "/"},
                "far": {"type": "http", "url": "https://example.com/mcp", "headers": {"K": "v"}},
                "off": {"command": "x", "disabled": True},
            },
        }
    )
    assert list(found) == ["files", "far"]
    assert found["files"].command == "mcp-files"
    assert found["far"].url == "https://example.com/mcp"
    assert servers({"mcpServers": {}}) == {}
    with pytest.raises(SettingsError, match="No such file"):
        config.load("/no/such/file.json")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Invalid JSON"),
        ("[]", "should be an object"),
        ({}, "mcpServers"),
        ({"mcpServers": {"a": {}}}, "mcpServers.a: give either command or url"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://a"}}}, "either command or url"),
        ({"mcpServers": {"a": {"comand": "x"}}}, "mcpServers.a.comand"),
        ({"mcpServers": {"a": {"command": 5}}}, "mcpServers.a.command"),
        ({"mcpServers": {"a": {"url": "ftp://a"}}}, "http"),
        ({"mcpServers": {"a": {"url": 5, "headers": {"Authorization": "hunter2"}}}}, ""),
        ({"mcpServers": {"a": {"url": "http://a", "args": ["x"]}}}, "belong to command"),
        ({"mcpServers": {"a": {"command": "x", "headers": {"K": "v"}}}}, "belong to url"),
        ({"mcpServers": {"a.b": {"command": "x"}}}, "'a.b' is not a valid server name"),
        ({"mcpServers": {"sluice": {"command": "x"}}}, "'sluice' is not a valid server name"),
        ({"mcpServers": {"workflow": {"command": "x"}}}, "'workflow' is not a valid server name"),
        ({"mcpServers": {f"s{n}": {"command": "x"} for n in range(65)}}, "64 servers at most"),
    ],
)
def test_errors_of_a_file_are_reported(servers: Any, content: Any, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        servers(content)
    assert str(caught.value).startswith("MCP_SERVERS names ")
    assert says in str(caught.value)
    assert "hunter2" not in str(caught.value)  # a secret


@pytest.mark.parametrize("version", ["1.27.0", None, "nonsense"])
def test_without_the_package_the_error_has_a_remedy(
    monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    def found(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", found)
    with pytest.raises(SettingsError, match=r"pip install 'sluice\[tools\]'"):
        config.check_package()


def test_packages_of_features_are_imported_on_demand() -> None:
    """Some are extras, and all cost memory."""
    code = (
        "import sys, sluice.worker.features.images.pixels.formats\n"
        "from sluice.worker.main import build_registry\n"
        "from sluice.common.settings.base import load_settings\n"
        "from sluice.common.settings.worker import WorkerSettings\n"
        "build_registry(load_settings(WorkerSettings))\n"
        "print({'mcp', 'numpy', 'PIL', 'pillow_heif', 'httpx2'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"
