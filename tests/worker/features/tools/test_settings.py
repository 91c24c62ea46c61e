"""Sources of tools: user modules, TOOLS and MCP_SERVERS, and their errors."""

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

from common.errors import SettingsError
from common.settings.base import load_settings
from common.settings.worker import WorkerSettings
from worker.execution.checkpoints import MAX_STEPS
from worker.features.agent.types import AgentLimits
from worker.features.tools.mcp import config
from worker.main import build_registry
from worker.registry import Registry

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
        "import sys, worker.features.images.pixels.formats\n"
        "from worker.main import build_registry\n"
        "from common.settings.base import load_settings\n"
        "from common.settings.worker import WorkerSettings\n"
        "build_registry(load_settings(WorkerSettings))\n"
        "print({'mcp', 'numpy', 'PIL', 'pillow_heif', 'httpx2'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "set()"
