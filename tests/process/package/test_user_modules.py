"""Modules of a user whose names are those of Sluice's folders do not affect Sluice."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.commands import COMMANDS
from tests.support.installed import SOURCE_TREE, Installation
from tests.support.processes.gateway import GatewayProcess, environment, free_port
from tests.support.processes.jobs import field, wait_for
from tests.support.servers import RealServer
from tests.support.waiting import TIMEOUT_S

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts every command")
#: Modules in the user's directory; each raises when it is imported.
RAISING = ("bench", "client", "common", "deploy", "gateway", "ops", "tests", "tools", "worker")
HANDLERS = """
from common import ANSWER

def register(registry):
    @registry.handler("chat")
    async def chat(context, payload):
        return {"answer": ANSWER}
"""
#: Commands over HTTP, on Redis and on local files; {id} is a job that has ended.
OPERATIONS = (
    "version", "completion bash", "submit chat hello --wait", "get {id}", "events {id}",
    "trace {id}", "result {id}", "ls", "queue ls", "worker ls", "dlq ls", "stats", "audit",
    "audit --local", "key create --name shop", "key ls", "config explain", "config check",
    "model status",
)  # fmt: skip


@pytest.fixture(
    params=[
        "source tree",
        pytest.param(
            "wheel",
            marks=[
                pytest.mark.slow("builds and installs the wheel"),
                pytest.mark.xdist_group("distribution"),
            ],
        ),
    ]
)
def installation(request: pytest.FixtureRequest) -> Installation:
    if request.param == "wheel":
        found: Installation = request.getfixturevalue("installed")
        return found
    return SOURCE_TREE


@pytest.fixture
def raising(tmp_path: Path) -> Path:
    """A directory in which every one of these modules raises."""
    directory = tmp_path / "project"
    directory.mkdir()
    for name in RAISING:
        (directory / f"{name}.py").write_text("raise RuntimeError(f'{__name__} of the user')\n")
    return directory


@pytest.fixture
def gateway(
    installation: Installation, raising: Path, one_server: RealServer
) -> Iterator[GatewayProcess]:
    gateway = installation.gateway(raising, one_server.url, raising)
    yield gateway.wait_until_listening()
    gateway.close()


def test_a_handler_imports_the_user_s_module(
    installation: Installation, raising: Path, gateway: GatewayProcess, one_server: RealServer
) -> None:
    (raising / "common.py").write_text("ANSWER = 'of the user'\n")
    (raising / "handlers.py").write_text(HANDLERS)
    worker = installation.worker(
        raising, "sluice.worker", one_server.url, raising, worker_handlers="handlers"
    )
    try:
        job_id = gateway.submit()
        wait_for(one_server.client, job_id, b"done", b"error")
        assert field(one_server.client, job_id, "result") == {"answer": "of the user"}
    finally:
        worker.kill()


@SLOW
@pytest.mark.parametrize("module", ["sluice.worker.echo_worker", "sluice.worker.bullmq"])
def test_other_workers_start(
    installation: Installation, raising: Path, one_server: RealServer, module: str
) -> None:
    worker = installation.worker(
        raising, module, one_server.url, raising, bullmq_queues="videos", bullmq_handlers=""
    )
    try:
        worker.wait_for_line("takes jobs")
    finally:
        worker.kill()


@SLOW
def test_uvicorn_starts_the_gateway(
    installation: Installation, raising: Path, one_server: RealServer
) -> None:
    words = ("-m", "uvicorn", "sluice.gateway.main:app", "--port", str(free_port()))
    gateway = GatewayProcess(
        (installation.python, *words), raising / "gateway.log",
        REDIS_URL=one_server.url, PYTHONPATH=installation.pythonpath(raising),
    )  # fmt: skip
    try:
        assert gateway.wait_until_listening().http.get("/readyz").status_code == 200
    finally:
        gateway.close()


@SLOW
def test_every_command_can_be_imported(installation: Installation, raising: Path) -> None:
    code = "from sluice.cli import parser_for\nfor name in {!r}: parser_for(name)"
    done = installation.run(raising, "-c", code.format(list(COMMANDS)), pythonpath=(raising,))
    assert (done.returncode, done.stderr) == (0, "")


@SLOW
def test_commands_work(
    installation: Installation, raising: Path, gateway: GatewayProcess, one_server: RealServer
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        urls = {"SLUICE_URL": gateway.url, "REDIS_URL": one_server.url}
        return installation.run(raising, "-m", "sluice", *words, pythonpath=(raising,), **urls)

    worker = installation.worker(raising, "sluice.worker.echo_worker", one_server.url, raising)
    try:
        job_id = gateway.submit()
        wait_for(one_server.client, job_id, b"done", b"error")
        for operation in OPERATIONS:
            done = run(*operation.format(id=job_id).split())
            assert done.returncode == 0, (operation, done.stdout, done.stderr)
        checks = json.loads(run("doctor", "--json").stdout)
        assert "of the user" not in json.dumps(checks)
        assert "gateway.answers" in json.dumps(checks)
    finally:
        worker.kill()


@SLOW
@pytest.mark.parametrize("worker", ["real", "echo"])
def test_up_runs_gateway_and_worker(
    installation: Installation, raising: Path, one_server: RealServer, worker: str
) -> None:
    up = subprocess.Popen(
        [installation.python, "-m", "sluice", "up", "--worker", worker],
        cwd=raising,
        env=environment(
            PORT=str(free_port()), REDIS_URL=one_server.url, SLUICE_DATA_DIR=str(raising),
            PYTHONPATH=installation.pythonpath(raising),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        assert up.stdout is not None
        shown = []
        for line in up.stdout:
            shown.append(line)
            if line.startswith("API:"):
                break
        assert shown[-1].startswith("API:"), "".join(shown)
        up.send_signal(signal.SIGINT)
        assert up.stdout.read().endswith("stopping\n")
        assert up.wait(TIMEOUT_S) == 0
    finally:
        up.kill()
        up.wait(TIMEOUT_S)
