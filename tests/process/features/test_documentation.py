"""The code blocks of the documentation work, as a reader would copy them.

docs/quickstart.md is executed by test_quickstart.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluice.worker.registry import Registry
from tests.support.files.photos import scene
from tests.support.processes.gateway import GatewayProcess, StartGateway, gateway_starter
from tests.support.processes.worker import ROOT, Process
from tests.support.servers import RealServer, missing

pytestmark = pytest.mark.process
PAGES = (
    "recipes", "handlers", "testing-handlers", "migrating", "web-applications",
    "client", "tools", "rag", "images", "workflows",
)  # fmt: skip
_BLOCK = re.compile(
    r"<!-- (tested|tested: real worker|file: (\S+)) -->\n```(\w*)\n(.*?)```", re.DOTALL
)
_REAL = "tested: real worker"
_ADDRESS = "localhost:8080"
RUNS_EXAMPLES = pytest.mark.slow("runs the examples of the documentation")
#: Errors end a block. Every answer is on a separate line.
_SHELL = """set -eo pipefail
curl() { command curl -sS --fail-with-body "$@" && echo; }
"""


class Snippet(NamedTuple):
    page: str
    kind: str
    text: str
    needs_real_worker: bool


def blocks(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Each marked block of a page: marker, file name, language, text."""
    yield from _BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())


def snippets() -> list[Snippet]:
    return [
        Snippet(page, "python" if kind == "python" else "shell", text, mark == _REAL)
        for page in PAGES
        for mark, file, kind, text in blocks(page)
        if not file
    ]


def files() -> dict[str, str]:
    return {name: text for page in PAGES for _, name, _, text in blocks(page) if name}


class Manual(NamedTuple):
    """A directory with the modules of the documentation, and a gateway with a worker."""

    directory: Path
    gateway: GatewayProcess

    def run(self, *command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            env={
                "PATH": path,
                "PYTHONPATH": f"{self.directory}{os.pathsep}{ROOT}",
                "SLUICE_URL": self.gateway.url,
                "HOME": str(self.directory),
            },
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def _manual(server: RealServer, directory: Path, worker: str, **settings: str) -> Iterator[Manual]:
    for name, text in files().items():
        (directory / name).write_text(text)
    scene().save(directory / "holiday.jpg")
    own = {name.lower(): value for name, value in settings.items()}
    process = Process(worker, directory / "worker.log", redis_url=server.url, **own)
    try:
        for start_gateway in gateway_starter(directory):
            yield Manual(directory, start_gateway(server.url, **settings))
    finally:
        process.kill()


@pytest.fixture(scope="module")
def manual(module_server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manual]:
    yield from _manual(module_server, tmp_path_factory.mktemp("manual"), "worker.echo_worker")


@pytest.fixture(scope="module")
def real_manual(
    module_server: RealServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Manual]:
    """With the real worker, on its own queue."""
    directory = tmp_path_factory.mktemp("real")
    settings = {"QUEUE_STREAM_KEY": "real", "SLUICE_DATA_DIR": str(directory / "data")}
    yield from _manual(module_server, directory, "worker", **settings)


@RUNS_EXAMPLES
@pytest.mark.parametrize("snippet", snippets(), ids=lambda each: f"{each.page}-{each.text[:40]}")
def test_documented_examples_work(snippet: Snippet, manual: Manual, real_manual: Manual) -> None:
    user = real_manual if snippet.needs_real_worker else manual
    text = snippet.text.replace(_ADDRESS, f"127.0.0.1:{user.gateway.port}")
    if snippet.kind == "python":
        user.run(sys.executable, "-c", text)
        return
    if shutil.which("curl") is None and "curl" in text:
        missing("curl is not installed")
    output = user.run("bash", "-c", _SHELL + text)
    answers = [json.loads(line) for line in output.splitlines() if line.startswith('{"')]
    if "Idempotency-Key" in text:  # the same key returns the same job
        first, second = answers
        assert first == second


def test_the_documentation_has_tested_examples() -> None:
    assert len(snippets()) >= 20
    assert sum("Idempotency-Key" in each.text for each in snippets()) == 1
    handlers = {"counting.py", "billing.py"}
    tests = {"fakes.py", "test_handlers.py", "test_jobs.py"}
    migrated = {"functions.py", "chain.py", "receipts.py", "words.py", "thumbnails.py"}
    assert set(files()) == handlers | tests | migrated


@RUNS_EXAMPLES
def test_documented_handlers_run(
    manual: Manual, module_server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    """In a real worker with its own queue, called with the client."""
    code = (
        "import json, sys\nfrom sluice import Sluice\n"
        "task, payload = sys.argv[1], json.loads(sys.argv[2])\n"
        "print(json.dumps(Sluice().submit(task, payload).result(timeout_s=30)))"
    )
    for module, task, payload, outcome in (
        ("counting", "tool", {"upto": 3}, {"counted": 3}),
        ("counting", "code", {"upto": 2}, {"attempt": 2}),
        ("billing", "plan", {"customers": ["ann"]}, {"ann": "receipt for ann"}),
    ):
        own = {"queue_stream_key": module, "worker_handlers": module, "retry_backoff_s": 0.05}
        worker = spawn("worker", redis_url=module_server.url, pythonpath=manual.directory, **own)
        (tmp_path / module).mkdir(exist_ok=True)
        for start_gateway in gateway_starter(tmp_path / module):
            gateway = start_gateway(module_server.url, QUEUE_STREAM_KEY=module)
            client = Manual(manual.directory, gateway)
            output = client.run(sys.executable, "-c", code, task, json.dumps(payload))
            assert json.loads(output) == outcome
        worker.kill()


@RUNS_EXAMPLES
def test_documented_tests_of_handlers_pass(manual: Manual) -> None:
    output = manual.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "8 passed" in output


@RUNS_EXAMPLES
def test_migrated_handlers_run(
    manual: Manual,
    module_server: RealServer,
    spawn: Callable[..., Process],
    start_gateway: StartGateway,
) -> None:
    """All modules of the page on migrating, in one worker with its own queue."""
    gateway = start_gateway(module_server.url, QUEUE_STREAM_KEY="migrated")
    spawn(
        "worker", redis_url=module_server.url, queue_stream_key="migrated",
        pythonpath=manual.directory, worker_handlers="receipts,words,functions,chain",
        sluice_url=gateway.url,
    )  # fmt: skip
    wait = {"Prefer": "wait=30"}

    def run(task: str, payload: Any) -> Any:
        body = {"task": task, "payload": payload}
        answer = gateway.http.post("/v1/jobs", json=body, headers=wait)
        assert answer.status_code == 200, answer.text
        return answer.json()

    receipt = run("tool", {"tool": "send_receipt", "args": {"order": 1742}})
    assert receipt["result"]["output"] == "receipt-1742"
    words = run("tool", {"tool": "count_words", "args": {"text": "never lose it"}})
    assert words["result"]["output"] == 3
    url = "https://example.com/a"
    downloaded = run("code", {"function": "download", "args": {"url": url}})
    assert downloaded["result"] == {"url": url, "attempt": 2}
    assert run("code", {"function": "x"})["error"]["kind"] == "unknown_function"
    next_id = run("plan", {"order": 7})["result"]["receipt_job"]
    following = gateway.http.get(f"/v1/jobs/{next_id}", headers=wait).json()
    assert following["result"]["output"] == "receipt-7"


def test_documented_handler_of_a_bullmq_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "thumbnails.py").write_text(files()["thumbnails.py"])
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    registry.load("thumbnails")
    handler = registry.by_name("make")
    assert handler is not None
    assert handler.parse({"image": "7"}).image == "7"


def test_the_handler_of_the_readme_can_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [text] = re.findall(
        r"```python\n(# myhandlers.py\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    (tmp_path / "myhandlers.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    registry.load("myhandlers")
    handler = registry.resolve("chat")
    assert handler is not None
    assert handler.parse({"text": "hello"}).text == "hello"
