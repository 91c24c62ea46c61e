"""Tools in real workers: a kill during a call repeats nothing; MCP child processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.jobs import events, field, post, status, wait_for
from tests.support.processes.model import ScriptedModel
from tests.support.processes.worker import ROOT, Process, handler_module, wait_until
from tests.support.servers import RealServer, missing
from tests.worker.features.tools.test_mcp import alive

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts more workers")
MCP_SERVER = ROOT / "tests" / "support" / "mcp" / "server.py"

#: Appends a line, then waits while a file exists.
TOOLS = """
import os, time

PARAMETERS = {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}
HERE = os.path.dirname(__file__)

def append(call, arguments):
    "Appends a line to a file, and takes its time."
    with open(os.path.join(HERE, "effects"), "a") as file:
        file.write(f"{arguments['line']} {call.key}\\n")
    while os.path.exists(os.path.join(HERE, "wait")):
        time.sleep(0.01)
    return "appended"

def register_tools(toolbox):
    toolbox.add(append, name="append_once", parameters=PARAMETERS, timeout_s=60)
    toolbox.add(append, name="append_again", parameters=PARAMETERS, timeout_s=60, takes_key=True)
"""


class ToolWorkers:
    """Workers with these tools, and their effects."""

    def __init__(self, directory: Path, spawn: Callable[..., Process], server: RealServer) -> None:
        self._directory = directory
        self._spawn = spawn
        self._server = server
        self._own = handler_module(directory, TOOLS)
        self.client = server.client

    def worker(self, name: str, **more: object) -> Process:
        options = {"lease_ms": 900, "block_ms": 50, "consumer": name, **self._own, **more}
        return self._spawn("worker", redis_url=self._server.url, **options)

    def hold(self, *, held: bool = True) -> None:
        """Makes the tools block, or not."""
        if held:
            (self._directory / "wait").touch()
        else:
            (self._directory / "wait").unlink()

    @property
    def effects(self) -> list[str]:
        path = self._directory / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def kill_during_call(self, job_id: str, first: Process, **more: object) -> None:
        """Kills the worker during a call; another worker takes the job."""
        wait_until(lambda: self.effects and events(self.client, job_id, b"tool_call"))
        os.kill(first.pid, signal.SIGKILL)
        self.hold(held=False)
        self.worker("other", **more)
        wait_for(self.client, job_id, b"done", b"error")

    def calls(self, job_id: str) -> list[int]:
        """The attempts of the calls."""
        return [event["attempt"] for event in events(self.client, job_id, b"tool_call")]


@pytest.fixture
def tool_workers(
    tmp_path: Path, spawn: Callable[..., Process], one_server: RealServer
) -> ToolWorkers:
    return ToolWorkers(tmp_path, spawn, one_server)


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    model = ScriptedModel()
    yield model.url
    model.kill()


def tool_job(name: str) -> str:
    return json.dumps({"tool": name, "args": {"line": "x"}})


def chat_job(name: str) -> str:
    return json.dumps({"text": f'call {name} with {{"line": "x"}}', "tools": [name]})


@SLOW
def test_a_tool_that_is_not_repeatable_is_called_once(tool_workers: ToolWorkers) -> None:
    tool_workers.hold()
    first = tool_workers.worker("first")
    job_id = post(tool_workers.client, tool_job("append_once"), "tool")
    tool_workers.kill_during_call(job_id, first)
    assert tool_workers.effects == [f"x {job_id}:call"]
    assert status(tool_workers.client, job_id) == b"error"
    assert field(tool_workers.client, job_id, "error")["kind"] == "tool_outcome_unknown"
    assert tool_workers.calls(job_id) == [1, 2]


@SLOW
@pytest.mark.parametrize("name", ["append_once", "append_again"])
def test_an_agent_continues_after_a_kill_during_a_call(
    tool_workers: ToolWorkers, model_url: str, name: str
) -> None:
    tool_workers.hold()
    first = tool_workers.worker("first", model_url=model_url)
    job_id = post(tool_workers.client, chat_job(name))
    tool_workers.kill_during_call(job_id, first, model_url=model_url)
    assert status(tool_workers.client, job_id) == b"done", field(
        tool_workers.client, job_id, "error"
    )
    result = field(tool_workers.client, job_id, "result")
    [step] = result["steps"]
    assert result["finish_reason"] == "stop"
    if name == "append_once":
        assert tool_workers.effects == [f"x {job_id}:agent.1.0"]
        assert step["error"]["kind"] == "tool_outcome_unknown"
        assert result["text"].startswith("The tool said: error (tool_outcome_unknown)")
    else:
        assert tool_workers.effects == [f"x {job_id}:agent.1.0"] * 2
        assert result["text"] == "The tool said: appended"
    # The first request to the model is not repeated.
    assert tool_workers.calls(job_id) == [1, 2]
    assert result["rounds"] == 2


# -- MCP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "manner"),
    [
        pytest.param(signal.SIGTERM, "kind"),
        pytest.param(signal.SIGTERM, "stubborn", marks=SLOW),
        pytest.param(signal.SIGKILL, "stubborn", marks=SLOW),
        pytest.param(signal.SIGKILL, "kind", marks=SLOW),
    ],
)
def test_mcp_child_processes_end_with_the_worker(
    tool_workers: ToolWorkers, tmp_path: Path, number: signal.Signals, manner: str
) -> None:
    if importlib.util.find_spec("mcp") is None:
        missing("the package mcp is not installed")
    path = tmp_path / "pid"
    arguments = ["-S", str(MCP_SERVER), manner, str(path)]
    servers = {"mcpServers": {"hand": {"command": sys.executable, "args": arguments}}}
    (tmp_path / "mcp.json").write_text(json.dumps(servers))
    worker = tool_workers.worker("one", mcp_servers=tmp_path / "mcp.json", heartbeat_s=0.2)
    worker.wait_for_line("MCP server hand is up")
    worker.wait_for_line("takes jobs")
    payload = json.dumps({"tool": "hand.add", "args": {"a": 2, "b": 3}})
    job_id = post(tool_workers.client, payload, "tool")
    wait_for(tool_workers.client, job_id)
    assert field(tool_workers.client, job_id, "result")["output"] == "5"
    beat = wait_until(lambda: tool_workers.client.get("jobs:stream:worker:one"))
    assert json.loads(beat)["mcp"][0]["state"] == "up"
    pid = int(path.read_text())
    assert alive(pid)
    worker.send_signal(number)
    assert worker.wait(30) == (0 if number is signal.SIGTERM else -number)
    wait_until(lambda: not alive(pid))
    assert "Traceback" not in worker.log
