"""The web applications in `examples/web/` submit jobs and pass their events on."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.gateway.sse import Parser
from tests.support.processes.gateway import GatewayProcess, StartGateway, free_port
from tests.support.processes.worker import ROOT, Process
from tests.support.servers import RealServer, missing

pytestmark = pytest.mark.process
WEB = ROOT / "examples" / "web"
TYPES = ["queued", "running", "message", "done"]


@pytest.fixture
def gateway(
    one_server: RealServer, start_gateway: StartGateway, spawn: Callable[..., Process]
) -> GatewayProcess:
    spawn("worker.echo_worker", redis_url=one_server.url)
    return start_gateway(one_server.url)


def load(name: str) -> ModuleType:
    """Imports an example anew, so that it reads SLUICE_URL."""
    spec = importlib.util.spec_from_file_location(name, WEB / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require_flask() -> None:
    """Flask is installed as a dependency of another package of the tests."""
    if importlib.util.find_spec("flask") is None:
        missing("flask is not installed")


def web_client(app: Any) -> Any:
    """The test client of FastAPI, imported when it is used: it loads an HTTP library."""
    from fastapi.testclient import TestClient

    return TestClient(app)


def frames(text: str) -> list[tuple[str | None, str | None]]:
    """Id and event type of each frame."""
    parser = Parser()
    parser.feed(text.encode())
    return [(block.id, block.event) for block in parser.blocks]


def check_application(client: Any) -> None:
    """`client` is the test client of FastAPI or of Flask."""

    def json_of(answer: Any) -> Any:
        return answer.json() if callable(answer.json) else answer.json

    key = {"Idempotency-Key": "question-1"}
    answer = client.post("/answers", json={"text": "hello"}, headers=key)
    assert answer.status_code == 202
    location = answer.headers["Location"]
    assert location == f"/answers/{json_of(answer)['job_id']}"
    again = client.post("/answers", json={"text": "hello"}, headers=key)
    assert json_of(again) == json_of(answer)
    stream = client.get(f"{location}/events")
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    received = frames(stream.text)
    assert [kind for _, kind in received] == TYPES
    second = {"Last-Event-ID": str(received[1][0])}
    rest = frames(client.get(f"{location}/events", headers=second).text)
    assert rest == received[2:]
    job = json_of(client.get(location))
    assert (job["status"], job["error"]) == ("done", None)
    assert client.get("/answers/unknown/events").status_code == 404


def test_fastapi_application(gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_URL", gateway.url)
    with web_client(load("fastapi_app").app) as client:
        check_application(client)
        assert client.post("/answers", json={"text": ""}).status_code == 422


def test_flask_application(gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    require_flask()
    monkeypatch.setenv("SLUICE_URL", gateway.url)
    client = load("flask_app").app.test_client()
    check_application(client)
    assert client.post("/answers", json={"text": 1}).status_code == 400


@pytest.mark.parametrize("name", ["fastapi_app", "flask_app"])
def test_without_a_gateway_the_answer_is_503(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "flask_app":
        require_flask()
    monkeypatch.setenv("SLUICE_URL", f"http://127.0.0.1:{free_port()}")
    app = load(name).app
    client = web_client(app) if name == "fastapi_app" else app.test_client()
    answer = client.post("/answers", json={"text": "hello"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")


def test_javascript_client(gateway: GatewayProcess, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        missing("node is not installed")
    done = subprocess.run(
        [str(node), str(WEB / "watch.mjs"), "hello"],
        env={"PATH": os.environ["PATH"], "SLUICE_URL": gateway.url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    events = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [kind for kind, _ in events] == TYPES
    assert json.loads(events[1][1]) == {"attempt": 1}
