"""MCP servers: start, list, call, reconnect and stop, with good and misbehaving servers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.common.contracts.models import McpState
from sluice.worker.features.tools.errors import (
    CallCanceled,
    InvalidArguments,
    OutcomeUnknown,
    ToolFailed,
    ToolTimeout,
    ToolUnavailable,
    UnknownTool,
)
from sluice.worker.features.tools.mcp import connection
from sluice.worker.features.tools.mcp import servers as mcp_servers
from sluice.worker.features.tools.mcp.config import McpServer
from sluice.worker.features.tools.mcp.connection import McpConnection
from sluice.worker.features.tools.mcp.servers import McpServers
from sluice.worker.features.tools.toolbox import ToolBox
from sluice.worker.registry import WorkerServices
from tests.support import ports
from tests.support.servers import missing
from tests.support.waiting import eventually
from tests.support.worker.model import FakeJob

#: One test process imports mcp, not all of them.
pytestmark = pytest.mark.xdist_group("mcp")

MCP_SERVERS = Path(ports.__file__).parent / "mcp"
TIMEOUT_S = 60.0


class Servers:
    """A toolbox with MCP servers."""

    def __init__(self, servers: dict[str, McpServer]) -> None:
        self.toolbox = ToolBox(timeout_s=30.0)
        self.services = WorkerServices(None, None, None, None, None, None)  # type: ignore[arg-type]
        self.service = McpServers(servers, self.toolbox)

    def connection(self, name: str = "hand") -> McpConnection:
        return self.service.connections[name]

    async def up(self, name: str = "hand") -> None:
        await eventually(lambda: not self.connection(name).unavailable_reason, TIMEOUT_S)

    async def call(self, name: str, job: FakeJob | None = None, /, **arguments: Any) -> Any:
        tool = self.toolbox.find(name)
        parsed = tool.parse(arguments)
        return (await self.toolbox.call(tool, parsed, job or FakeJob(), "key")).value

    async def cancel_waiting(self, name: str, path: Path) -> None:
        """Cancel a call of a tool that waits; it writes to the path when it has begun."""
        job = FakeJob()
        calling = asyncio.create_task(self.call(name, job, path=str(path)))
        await eventually(path.exists, TIMEOUT_S)
        job.cancel()
        with pytest.raises(CallCanceled):
            await asyncio.wait_for(calling, 5)

    def reading(self, name: str = "hand") -> Any:
        [found] = [each for each in self.services.heartbeat_fields["mcp"]() if each.name == name]
        return found


def by_hand(*arguments: str, **more: Any) -> McpServer:
    script = str(MCP_SERVERS / "server.py")
    return McpServer(command=sys.executable, args=["-S", script, *arguments], **more)


@pytest.fixture(autouse=True)
def package() -> None:
    if importlib.util.find_spec("mcp") is None:
        missing("the package mcp is not installed")


@pytest.fixture
async def begin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers as the worker does, and stops all of them."""
    monkeypatch.setattr(connection, "BACKOFF_S", 0.05)
    monkeypatch.setattr(mcp_servers, "START_S", 0.5)  # tests wait for specific states
    begun: list[Servers] = []

    async def start(*, wait: bool = True, **servers: McpServer) -> Servers:
        begun.append(Servers(servers))
        await begun[-1].service.start(begun[-1].services)
        for name in servers if wait else ():
            await begun[-1].up(name)
        return begun[-1]

    yield start
    for each in begun:
        await each.service.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def pid_in(path: Path, other_than: int = 0) -> int:
    def read_pid() -> int:
        found = int(path.read_text()) if path.exists() else 0
        return found if found != other_than else 0

    return int(await eventually(read_pid, TIMEOUT_S))


async def test_tools_are_listed_described_and_called(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    servers = await begin(hand=by_hand(env={"TOKEN": "its own"}))
    names = servers.toolbox.names()
    assert "hand.add" in names
    assert "hand.bad/name" not in names
    assert "hand.elsewhere" not in names  # its schema refers to a remote document
    add = servers.toolbox.find("hand.add")
    assert (add.description, add.repeatable, add.wire_name) == ("Adds.", True, "hand__add")
    assert not servers.toolbox.find("hand.append").repeatable
    assert await servers.call("hand.add", a=2, b=3) == "5"
    with pytest.raises(InvalidArguments, match='at "/a"'):
        await servers.call("hand.add", a="2", b=3)
    with pytest.raises(UnknownTool):
        servers.toolbox.find("hand.hammer")
    reading = servers.reading()
    assert (reading.state, reading.reason, reading.tools) == (McpState.UP, "", len(names))
    for tool, words in (("fail", r"hand\.fail: out of paper"), ("refuse", r"\.refuse: not today")):
        with pytest.raises(ToolFailed, match=words):
            await servers.call(f"hand.{tool}")
    # A server gets its own environment only.
    given = json.loads(await servers.call("hand.environment"))
    assert given["TOKEN"] == "its own"
    assert "MODEL_API_KEY" not in given
    # New tools are noticed.
    await servers.call("hand.grow")
    await eventually(lambda: "hand.grown" in servers.toolbox.names(), TIMEOUT_S)
    assert await servers.call("hand.grown") == "big"


async def test_an_interrupted_call_is_canceled_on_the_server(begin: Any, tmp_path: Path) -> None:
    servers = await begin(
        slow=by_hand("kind", str(tmp_path / "slow"), timeout_s=0.3),
        hand=by_hand("kind", str(tmp_path / "hand")),
        loud=by_hand("garbage"),  # its invalid lines are ignored
    )
    with pytest.raises(ToolTimeout):
        await servers.call("slow.wait", path=str(tmp_path / "state of slow"))
    await servers.cancel_waiting("hand.wait", tmp_path / "state")
    for name in ("slow", "hand"):
        await eventually((tmp_path / f"{name}.canceled").exists, TIMEOUT_S)
    for name in ("slow", "loud"):
        assert await servers.call(f"{name}.add", a=2, b=3) == "5"


async def test_a_server_that_dies_during_a_call_is_restarted(begin: Any) -> None:
    servers = await begin(hand=by_hand())
    for tool, error in (("die", OutcomeUnknown), ("die_reading", ToolUnavailable)):
        before = servers.reading().restarts
        with pytest.raises(error, match="disconnected during the call"):
            await servers.call(f"hand.{tool}")
        assert servers.reading().state is McpState.DOWN
        await servers.up()
        assert servers.reading().restarts > before
        assert await servers.call("hand.add", a=1, b=1) == "2"


SDK_SERVER = str(MCP_SERVERS / "sdk_server.py")


async def test_a_current_server_over_stdio(begin: Any, tmp_path: Path) -> None:
    state = tmp_path / "state"
    servers = await begin(today=McpServer(command=sys.executable, args=[SDK_SERVER]))
    assert servers.toolbox.find("today.add").repeatable
    assert await servers.call("today.add", a=2, b=3) == {"result": 5}
    assert await servers.call("today.picture") == "see:\n[image image/png]"
    await servers.cancel_waiting("today.wait", state)
    await eventually(lambda: state.read_text() == "canceled", TIMEOUT_S)


@pytest.mark.slow("starts two MCP servers over HTTP")
async def test_a_current_server_over_http(begin: Any) -> None:
    port = ports.pick()

    def listen() -> subprocess.Popen[bytes]:
        command = [sys.executable, SDK_SERVER, str(port)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    process = listen()
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        servers = await begin(far=McpServer(url=url, headers={"X-Key": "k"}))
        assert await servers.call("far.add", a=2, b=3) == {"result": 5}
        process.kill()
        process.wait(10)
        with pytest.raises(ToolUnavailable):
            await servers.call("far.add", a=2, b=3)
        assert servers.reading("far").state is McpState.DOWN
        process = listen()
        await servers.up("far")
        assert await servers.call("far.add", a=1, b=1) == {"result": 2}
    finally:
        process.kill()
        process.wait(10)


async def test_children_end_with_the_service(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{name}", 0.2)
    manners = ("kind", "stubborn", "deaf")
    children = {manner: by_hand(manner, str(tmp_path / manner)) for manner in manners}
    servers = await begin(wait=False, **children)
    for manner in ("kind", "stubborn"):
        await servers.up(manner)
    pids = [await pid_in(tmp_path / manner) for manner in manners]
    await servers.service.close()
    for pid in pids:
        await eventually(lambda pid=pid: not alive(pid), TIMEOUT_S)


async def test_a_killed_server_is_restarted_or_reported(begin: Any, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    servers = await begin(hand=by_hand("kind", str(path)))
    first = await pid_in(path)
    os.kill(first, signal.SIGKILL)
    second = await pid_in(path, other_than=first)
    await servers.up()
    assert await servers.call("hand.add", a=1, b=1) == "2"
    assert alive(second)
    servers.connection()._server = by_hand("deaf")  # the next one never answers
    os.kill(second, signal.SIGKILL)
    await eventually(lambda: servers.reading().state is McpState.DOWN, TIMEOUT_S)
    with pytest.raises(ToolUnavailable, match="MCP server hand is down"):
        await servers.call("hand.add", a=1, b=1)


async def test_broken_servers_affect_no_others(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 1.2)
    reasons = {
        "command": (McpServer(command="no-such-command-anywhere"), "not found"),
        "dead": (by_hand("dead"), "onnection"),
        "deaf": (by_hand("deaf"), "did not answer"),
        "directory": (by_hand(cwd="/no/such/directory"), "No such file"),
        "listener": (McpServer(url="http://127.0.0.1:1/mcp"), ""),
    }
    began = time.monotonic()
    broken = {name: server for name, (server, _) in reasons.items()}
    servers = await begin(wait=False, **broken, hand=by_hand())
    assert time.monotonic() - began < 8  # it does not wait long for a slow server
    assert servers.reading("deaf").state is McpState.STARTING
    await servers.up("hand")
    for name, (_, reason) in reasons.items():
        await eventually(lambda name=name: servers.reading(name).state is McpState.DOWN, TIMEOUT_S)
        assert servers.reading(name).reason
        assert reason in servers.reading(name).reason
        with pytest.raises(ToolUnavailable, match=f"MCP server {name} is down"):
            servers.toolbox.find(f"{name}.anything")
    assert await servers.call("hand.add", a=1, b=1) == "2"
