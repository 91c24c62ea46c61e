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

from common.contracts.models import McpState
from tests.conftest import eventually
from tests.support import ports
from tests.support.backends import missing
from tests.worker.features.tools.kit import Job
from worker.features.tools.errors import (
    CallCanceled,
    InvalidArguments,
    OutcomeUnknown,
    ToolFailed,
    ToolTimeout,
    ToolUnavailable,
    UnknownTool,
)
from worker.features.tools.mcp import connection
from worker.features.tools.mcp import servers as mcp_servers
from worker.features.tools.mcp.config import McpServer
from worker.features.tools.mcp.connection import McpConnection
from worker.features.tools.mcp.servers import McpServers
from worker.features.tools.toolbox import ToolBox
from worker.registry import WorkerServices

HERE = Path(__file__).parent
TIMEOUT_S = 60.0


class Servers:
    """A toolbox with MCP servers."""

    def __init__(self, servers: dict[str, McpServer]) -> None:
        self.toolbox = ToolBox(timeout_s=30.0)
        self.house = WorkerServices(None, None, None, None, None, None)  # type: ignore[arg-type]
        self.service = McpServers(servers, self.toolbox)

    def connection(self, name: str = "hand") -> McpConnection:
        return self.service.connections[name]

    async def up(self, name: str = "hand") -> None:
        await eventually(lambda: not self.connection(name).unavailable_reason, TIMEOUT_S)

    async def call(self, name: str, job: Job | None = None, /, **arguments: Any) -> Any:
        tool = self.toolbox.find(name)
        parsed = tool.parse(arguments)
        return (await self.toolbox.call(tool, parsed, job or Job(), "key")).value

    def reading(self, name: str = "hand") -> Any:
        [found] = [each for each in self.house.heartbeat_fields["mcp"]() if each.name == name]
        return found


def by_hand(*arguments: str, **more: Any) -> McpServer:
    script = str(HERE / "mcp_server.py")
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
        await begun[-1].service.start(begun[-1].house)
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


# -- tools ----------------------------------------------------------------------------------------


async def test_tools_are_listed_described_and_called(begin: Any) -> None:
    servers = await begin(hand=by_hand())
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


async def test_an_error_of_a_server_is_a_failure(begin: Any) -> None:
    servers = await begin(hand=by_hand())
    with pytest.raises(ToolFailed, match=r"hand\.fail: out of paper"):
        await servers.call("hand.fail")
    with pytest.raises(ToolFailed, match=r"hand\.refuse: not today"):
        await servers.call("hand.refuse")
    assert await servers.call("hand.add", a=1, b=1) == "2"


async def test_a_server_is_given_its_own_environment_only(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    servers = await begin(hand=by_hand(env={"TOKEN": "its own"}))
    given = json.loads(await servers.call("hand.environment"))
    assert given["TOKEN"] == "its own"
    assert "MODEL_API_KEY" not in given


async def test_new_tools_are_noticed(begin: Any) -> None:
    servers = await begin(hand=by_hand())
    await servers.call("hand.grow")
    await eventually(lambda: "hand.grown" in servers.toolbox.names(), TIMEOUT_S)
    assert await servers.call("hand.grown") == "big"


async def test_invalid_lines_of_a_server_are_ignored(begin: Any) -> None:
    servers = await begin(hand=by_hand("garbage"))
    assert await servers.call("hand.add", a=2, b=3) == "5"


async def test_a_timed_out_call_is_canceled_on_the_server(begin: Any, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    servers = await begin(hand=by_hand("kind", str(pid), timeout_s=0.3))
    with pytest.raises(ToolTimeout):
        await servers.call("hand.wait", path=str(tmp_path / "state"))
    await eventually((tmp_path / "pid.canceled").exists, TIMEOUT_S)
    assert await servers.call("hand.add", a=1, b=1) == "2"


async def test_a_canceled_job_cancels_its_call(begin: Any, tmp_path: Path) -> None:
    pid, state, job = tmp_path / "pid", tmp_path / "state", Job()
    servers = await begin(hand=by_hand("kind", str(pid)))
    calling = asyncio.create_task(servers.call("hand.wait", job, path=str(state)))
    await eventually(state.exists, TIMEOUT_S)
    job.canceled.set()
    with pytest.raises(CallCanceled):
        await asyncio.wait_for(calling, 5)
    await eventually((tmp_path / "pid.canceled").exists, TIMEOUT_S)


# -- servers that end -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "error"), [("die", OutcomeUnknown), ("die_reading", ToolUnavailable)]
)
async def test_a_server_that_dies_during_a_call_is_restarted(
    begin: Any, tool: str, error: type[Exception]
) -> None:
    servers = await begin(hand=by_hand())
    with pytest.raises(error, match="disconnected during the call"):
        await servers.call(f"hand.{tool}")
    assert servers.reading().state is McpState.DOWN
    await servers.up()
    assert servers.reading().restarts > 0
    assert await servers.call("hand.add", a=1, b=1) == "2"


async def test_a_killed_server_is_noticed_without_a_call(begin: Any, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    servers = await begin(hand=by_hand("kind", str(path)))
    first = await pid_in(path)
    os.kill(first, signal.SIGKILL)
    second = await pid_in(path, other_than=first)
    await servers.up()
    assert await servers.call("hand.add", a=1, b=1) == "2"
    assert alive(second)


async def test_tools_of_a_server_that_is_down_are_unavailable(begin: Any, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    servers = await begin(hand=by_hand("kind", str(path)))
    servers.connection()._server = by_hand("deaf")  # the next one never answers
    os.kill(await pid_in(path), signal.SIGKILL)
    await eventually(lambda: servers.reading().state is McpState.DOWN, TIMEOUT_S)
    with pytest.raises(ToolUnavailable, match="MCP server hand is down"):
        await servers.call("hand.add", a=1, b=1)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (McpServer(command="no-such-command-anywhere"), "not found"),
        (by_hand("dead"), "onnection"),
        (by_hand("deaf"), "did not answer"),
        (by_hand(cwd="/no/such/directory"), "No such file"),
        (McpServer(url="http://127.0.0.1:1/mcp"), ""),
    ],
    ids=["no-command", "dead", "deaf", "no-directory", "no-listener"],
)
async def test_a_broken_server_does_not_affect_others(
    begin: Any, monkeypatch: pytest.MonkeyPatch, server: McpServer, reason: str
) -> None:
    monkeypatch.setattr(connection, "CONNECT_S", 2.0)
    servers = await begin(wait=False, broken=server, hand=by_hand())
    await servers.up("hand")
    await eventually(lambda: servers.reading("broken").state is McpState.DOWN, TIMEOUT_S)
    assert reason in servers.reading("broken").reason
    assert servers.reading("broken").reason
    with pytest.raises(ToolUnavailable, match="MCP server broken is down"):
        servers.toolbox.find("broken.anything")
    assert await servers.call("hand.add", a=1, b=1) == "2"


async def test_the_worker_does_not_wait_long_for_a_slow_server(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_servers, "START_S", 0.2)
    began = time.monotonic()
    servers = await begin(wait=False, hand=by_hand("deaf"))
    assert time.monotonic() - began < 8  # less than the limit in production
    assert servers.reading().state is McpState.STARTING


# -- servers written with the package --------------------------------------------------------------

SDK_SERVER = str(HERE / "mcp_sdk_server.py")


async def test_a_current_server_over_stdio(begin: Any, tmp_path: Path) -> None:
    state, job = tmp_path / "state", Job()
    servers = await begin(today=McpServer(command=sys.executable, args=[SDK_SERVER]))
    assert servers.toolbox.find("today.add").repeatable
    assert await servers.call("today.add", a=2, b=3) == {"result": 5}
    assert await servers.call("today.picture") == "see:\n[image image/png]"
    calling = asyncio.create_task(servers.call("today.wait", job, path=str(state)))
    await eventually(state.exists, TIMEOUT_S)
    job.canceled.set()
    with pytest.raises(CallCanceled):
        await asyncio.wait_for(calling, 5)
    await eventually(lambda: state.read_text() == "canceled", TIMEOUT_S)


async def test_a_current_server_over_http(begin: Any, free_port: int) -> None:
    def listen() -> subprocess.Popen[bytes]:
        command = [sys.executable, SDK_SERVER, str(free_port)]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    process = listen()
    try:
        url = f"http://127.0.0.1:{free_port}/mcp"
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


@pytest.fixture
def free_port() -> int:
    return ports.pick()


@pytest.mark.parametrize("manner", ["kind", "stubborn", "deaf"])
async def test_children_end_with_the_service(begin: Any, tmp_path: Path, manner: str) -> None:
    path = tmp_path / "pid"
    servers = await begin(wait=manner != "deaf", hand=by_hand(manner, str(path)))
    pid = await pid_in(path)
    await servers.service.close()
    await eventually(lambda: not alive(pid), TIMEOUT_S)
