"""Tools in real workers: a kill during a call repeats nothing; MCP child processes."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.jobs import events, field, post, wait_for
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


@pytest.fixture
def start_worker(
    tmp_path: Path, spawn: Callable[..., Process], one_server: RealServer
) -> Callable[..., Process]:
    usual = {"redis_url": one_server.url, "lease_ms": 900, "block_ms": 50}
    own = handler_module(tmp_path, TOOLS)
    return lambda name, **more: spawn("worker", consumer=name, **{**usual, **own, **more})


@pytest.fixture(scope="module")
def model_url() -> Iterator[str]:
    model = ScriptedModel()
    yield model.url
    model.kill()


@SLOW
@pytest.mark.parametrize("name", ["append_once", "append_again"])
def test_an_agent_continues_after_a_kill_during_a_call(
    start_worker: Callable[..., Process],
    one_server: RealServer,
    model_url: str,
    tmp_path: Path,
    name: str,
) -> None:
    client, effects = one_server.client, tmp_path / "effects"
    (tmp_path / "wait").touch()
    killed = start_worker("killed", model_url=model_url)
    chat = {"text": f'call {name} with {{"line": "x"}}', "tools": [name]}
    job_id = post(client, json.dumps(chat))
    wait_until(lambda: effects.exists() and events(client, job_id, b"tool_call"))
    killed.kill()
    (tmp_path / "wait").unlink()
    start_worker("other", model_url=model_url)
    wait_for(client, job_id)
    result = field(client, job_id, "result")
    [step] = result["steps"]
    assert result["finish_reason"] == "stop"
    repeatable = name == "append_again"
    assert effects.read_text() == f"x {job_id}:agent.1.0\n" * (2 if repeatable else 1)
    if repeatable:
        assert result["text"] == "The tool said: appended"
    else:
        assert step["error"]["kind"] == "tool_outcome_unknown"
        assert result["text"].startswith("The tool said: error (tool_outcome_unknown)")
    # The first request to the model is not repeated.
    assert [each["attempt"] for each in events(client, job_id, b"tool_call")] == [1, 2]
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
    start_worker: Callable[..., Process],
    one_server: RealServer,
    tmp_path: Path,
    number: signal.Signals,
    manner: str,
) -> None:
    client = one_server.client
    if importlib.util.find_spec("mcp") is None:
        missing("the package mcp is not installed")
    path = tmp_path / "pid"
    arguments = ["-S", str(MCP_SERVER), manner, str(path)]
    servers = {"mcpServers": {"hand": {"command": sys.executable, "args": arguments}}}
    (tmp_path / "mcp.json").write_text(json.dumps(servers))
    worker = start_worker("one", mcp_servers=tmp_path / "mcp.json", heartbeat_s=0.2)
    worker.wait_for_line("MCP server hand is up")
    worker.wait_for_line("takes jobs")
    payload = json.dumps({"tool": "hand.add", "args": {"a": 2, "b": 3}})
    job_id = post(client, payload, "tool")
    wait_for(client, job_id)
    assert field(client, job_id, "result")["output"] == "5"
    beat = wait_until(lambda: client.get("jobs:stream:worker:one"))
    assert json.loads(beat)["mcp"][0]["state"] == "up"
    pid = int(path.read_text())
    assert alive(pid)
    worker.send_signal(number)
    assert worker.wait(30) == (0 if number is signal.SIGTERM else -number)
    wait_until(lambda: not alive(pid))
    assert "Traceback" not in worker.log
