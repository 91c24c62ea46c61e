"""Tools in real workers: a kill during a call repeats nothing; MCP child processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.process.test_worker_process import handlers, post, status
from tests.support.backends import REAL, RealServer, missing
from tests.worker.features.tools.test_mcp import alive
from tests.worker.processes import ROOT, Process, wait_until

pytestmark = pytest.mark.process
LEASE_MS = 900
#: Several processes start at once, and the machine may be busy.
TIMEOUT_S = 60
MCP_SERVER = ROOT / "tests" / "worker" / "features" / "tools" / "mcp_server.py"

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


@pytest.fixture
def server(real_server: Callable[[str], RealServer]) -> RealServer:
    server = real_server(REAL[0])
    server.client.flushall()
    return server


class ToolWorkers:
    """Workers with these tools, and their effects."""

    def __init__(self, directory: Path, spawn: Callable[..., Process], server: RealServer) -> None:
        self._directory = directory
        self._spawn = spawn
        self._server = server
        self._own = handlers(directory, TOOLS)
        self.client: redis.Redis = server.client

    def worker(self, name: str, **more: object) -> Process:
        options = {"lease_ms": LEASE_MS, "block_ms": 50, "consumer": name, **self._own, **more}
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
        wait_until(lambda: self.effects and self.events(job_id, b"tool_call"), TIMEOUT_S)
        os.kill(first.pid, signal.SIGKILL)
        self.hold(held=False)
        self.worker("heir", **more)
        wait_until(lambda: status(self.client, job_id) in (b"done", b"error"), TIMEOUT_S)

    def record(self, job_id: str, field: str) -> Any:
        return json.loads(self.client.hget(f"job:{job_id}", field) or "null")

    def events(self, job_id: str, kind: bytes) -> list[Any]:
        entries = self.client.xrange(f"job:{job_id}:events")
        return [json.loads(fields[b"data"]) for _, fields in entries if fields[b"type"] == kind]


@pytest.fixture
def tool_workers(tmp_path: Path, spawn: Callable[..., Process], server: RealServer) -> ToolWorkers:
    return ToolWorkers(tmp_path, spawn, server)


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    """A scripted model server in a separate process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.model_server", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.wait(10)
    process.stdout.close()


def tool_job(name: str) -> str:
    return json.dumps({"tool": name, "args": {"line": "x"}})


def chat_job(name: str) -> str:
    return json.dumps({"text": f'call {name} with {{"line": "x"}}', "tools": [name]})


def test_a_tool_that_is_not_repeatable_is_called_once(tool_workers: ToolWorkers) -> None:
    tool_workers.hold()
    first = tool_workers.worker("first")
    job_id = post(tool_workers.client, tool_job("append_once"), "tool")
    tool_workers.kill_during_call(job_id, first)
    assert tool_workers.effects == [f"x {job_id}:call"]
    assert status(tool_workers.client, job_id) == b"error"
    assert tool_workers.record(job_id, "error")["kind"] == "tool_outcome_unknown"
    assert [data["attempt"] for data in tool_workers.events(job_id, b"tool_call")] == [1, 2]


def test_a_tool_with_a_key_is_repeated_with_the_same_key(tool_workers: ToolWorkers) -> None:
    tool_workers.hold()
    first = tool_workers.worker("first")
    job_id = post(tool_workers.client, tool_job("append_again"), "tool")
    tool_workers.kill_during_call(job_id, first)
    assert tool_workers.effects == [f"x {job_id}:call"] * 2
    assert tool_workers.record(job_id, "result")["output"] == "appended"


@pytest.mark.parametrize("name", ["append_once", "append_again"])
def test_an_agent_continues_after_a_kill_during_a_call(
    tool_workers: ToolWorkers, model_url: str, name: str
) -> None:
    tool_workers.hold()
    first = tool_workers.worker("first", model_url=model_url)
    job_id = post(tool_workers.client, chat_job(name))
    tool_workers.kill_during_call(job_id, first, model_url=model_url)
    assert status(tool_workers.client, job_id) == b"done", tool_workers.record(job_id, "error")
    result = tool_workers.record(job_id, "result")
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
    assert [data["attempt"] for data in tool_workers.events(job_id, b"tool_call")] == [1, 2]
    assert result["rounds"] == 2


#: The saves of the agent below: its answer, its intent, its result.
@pytest.mark.parametrize("point", ["before_save", "after_save"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_crash_at_a_save_repeats_no_call(
    tool_workers: ToolWorkers, model_url: str, point: str, number: int
) -> None:
    job_id = post(tool_workers.client, chat_job("append_once"))
    first = tool_workers.worker("first", model_url=model_url, sluice_crash_at=f"{point}:{number}")
    assert first.wait(TIMEOUT_S) == -signal.SIGKILL
    tool_workers.worker("heir", model_url=model_url)
    wait_until(lambda: status(tool_workers.client, job_id) in (b"done", b"error"), TIMEOUT_S)
    assert status(tool_workers.client, job_id) == b"done", tool_workers.record(job_id, "error")
    unknown = (point, number) in (("after_save", 2), ("before_save", 3))
    called = (point, number) != ("after_save", 2)
    assert tool_workers.effects == ([f"x {job_id}:agent.1.0"] if called else [])
    text = tool_workers.record(job_id, "result")["text"]
    assert text.startswith("The tool said: error" if unknown else "The tool said: appended")


# -- MCP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("manner", ["kind", "stubborn"])
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
    worker.wait_for_line("MCP server hand is up", TIMEOUT_S)
    worker.wait_for_line("takes jobs", TIMEOUT_S)
    payload = json.dumps({"tool": "hand.add", "args": {"a": 2, "b": 3}})
    job_id = post(tool_workers.client, payload, "tool")
    wait_until(lambda: status(tool_workers.client, job_id) == b"done")
    assert tool_workers.record(job_id, "result")["output"] == "5"
    beat = wait_until(lambda: tool_workers.client.get("jobs:stream:worker:one"))
    assert json.loads(beat)["mcp"][0]["state"] == "up"
    pid = int(path.read_text())
    assert alive(pid)
    worker.send_signal(number)
    assert worker.wait(30) == (0 if number is signal.SIGTERM else -number)
    wait_until(lambda: not alive(pid))
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tools": "calculator,hammer"}, "TOOLS names 'hammer'"),
        ({"mcp_servers": "/no/such/file"}, "MCP_SERVERS names /no/such/file"),
    ],
)
def test_a_worker_reports_invalid_settings(
    tool_workers: ToolWorkers, settings: dict[str, object], says: str
) -> None:
    worker = tool_workers.worker("one", **settings)
    assert worker.wait(60) == 78
    assert says in worker.log
    assert "Traceback" not in worker.log
