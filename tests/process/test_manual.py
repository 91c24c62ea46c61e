"""The examples in the documentation work: commands and programs as a reader would copy them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.gateway.processes import GatewayProcess
from tests.support.backends import BUNDLED, RealServer, require_binary
from tests.worker.processes import ROOT, Process

DOCS = ROOT / "docs"
PAGES = ("quickstart", "recipes", "handlers")
_BLOCK = re.compile(r"<!-- (tested|file: (\S+)) -->\n```(\w*)\n(.*?)```", re.DOTALL)
_ADDRESS = "localhost:8080"


class Snippet(NamedTuple):
    page: str
    kind: str
    text: str


def blocks(page: str) -> Iterator[tuple[str, str, str, str]]:
    """Each marked block of a page: marker, file name, language, text."""
    yield from _BLOCK.findall((DOCS / f"{page}.md").read_text())


def snippets() -> list[Snippet]:
    return [
        Snippet(page, kind or "shell", text)
        for page in PAGES
        for mark, _, kind, text in blocks(page)
        if mark == "tested"
    ]


def files() -> dict[str, str]:
    return {name: text for page in PAGES for _, name, _, text in blocks(page) if name}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A directory with the modules of the documentation, and a gateway with an echo worker."""
    directory = tmp_path_factory.mktemp("manual")
    for name, text in files().items():
        (directory / name).write_text(text)
    server = RealServer(require_binary(BUNDLED))
    gateway = GatewayProcess(
        (sys.executable, "-m", "gateway"), directory / "gateway.log", PORT="0", REDIS_URL=server.url
    )
    worker = Process("worker.echo_worker", directory / "worker.log", redis_url=server.url)
    try:
        gateway.wait_until_listening()
        yield directory, f"127.0.0.1:{gateway.port}"
    finally:
        worker.kill()
        gateway.close()
        server.close()


def run(directory: Path, address: str, *command: str) -> str:
    done = subprocess.run(
        command,
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}",
            "SLUICE_URL": f"http://{address}",
            "HOME": str(directory),
        },
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("snippet", snippets(), ids=lambda each: f"{each.page}-{each.text[:40]}")
def test_documented_examples_work(site: tuple[Path, str], snippet: Snippet) -> None:
    directory, address = site
    text = snippet.text.replace(_ADDRESS, address)
    if snippet.kind == "python":
        run(directory, address, sys.executable, "-c", text)
        return
    if shutil.which("curl") is None and "curl" in text:
        pytest.skip("curl is not installed")
    for line in text.splitlines():
        output = run(directory, address, "bash", "-c", line.replace("curl -s", "curl -sS --fail"))
        if line.startswith("curl"):
            json.loads(output)


def test_the_same_key_returns_the_same_job(site: tuple[Path, str]) -> None:
    """As the recipe claims."""
    directory, address = site
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    [text] = [each.text for each in snippets() if "Idempotency-Key" in each.text]
    lines = text.replace(_ADDRESS, address).splitlines()
    first, second = (run(directory, address, "bash", "-c", line) for line in lines)
    assert json.loads(first) == json.loads(second)


def test_the_documentation_has_tested_examples() -> None:
    assert len(snippets()) > 10
    assert set(files()) == {"shouting.py", "counting.py", "billing.py"}


@pytest.mark.parametrize(
    ("module", "task", "payload", "outcome"),
    [
        ("shouting", "tool", {"text": "never lose it"}, {"text": "NEVER LOSE IT"}),
        ("counting", "tool", {"upto": 3}, {"counted": 3}),
        ("counting", "code", {"upto": 2}, {"attempt": 2}),
        ("billing", "plan", {"customers": ["ann"]}, {"ann": "receipt for ann"}),
    ],
)
def test_documented_handlers_run(
    site: tuple[Path, str],
    tmp_path: Path,
    module: str,
    task: str,
    payload: dict[str, object],
    outcome: object,
) -> None:
    """In a real worker with its own Redis, called with the client."""
    server = RealServer(require_binary(BUNDLED))
    own = {"redis_url": server.url, "worker_handlers": module, "retry_backoff_s": 0.05}
    gateway = GatewayProcess(
        (sys.executable, "-m", "gateway"), tmp_path / "gateway.log", PORT="0", REDIS_URL=server.url
    )
    worker = Process("worker", tmp_path / "worker.log", pythonpath=site[0], **own)
    code = (
        "import json, sys\nfrom sluice import Sluice\n"
        "task, payload = sys.argv[1], json.loads(sys.argv[2])\n"
        "print(json.dumps(Sluice().submit(task, payload).result(timeout_s=30)))"
    )
    try:
        gateway.wait_until_listening()
        address = f"127.0.0.1:{gateway.port}"
        output = run(tmp_path, address, sys.executable, "-c", code, task, json.dumps(payload))
        assert json.loads(output) == outcome
    finally:
        worker.kill()
        gateway.close()
        server.close()
