"""`make run` as a new user sees it: one command, two curl lines, Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.model.served import Served
from tests.support.processes.gateway import free_port
from tests.support.processes.worker import ROOT, wait_until
from tests.support.servers import missing

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts all processes again")
ServeFakeModel = Callable[[], Served]


def start(tmp_path: Path, port: object, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PORT": str(port), "SLUICE_DATA_DIR": str(tmp_path)}
    for name in ("REDIS_URL", "MODEL_URL"):
        env.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", "sluice", "up", *words],
        env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


class Up:
    """`sluice up` and its output."""

    def __init__(self, data: Path, *words: str) -> None:
        self.port = free_port()
        self.process = start(data, self.port, *words)
        #: The lines to copy.
        self.script = self._read_script()
        self._lines: list[str] = []
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _read_script(self) -> str:
        assert self.process.stdout is not None
        overdue = threading.Timer(60, self.process.kill)
        overdue.start()
        lines: list[str] = []
        try:
            for line in self.process.stdout:
                if line.startswith("API:"):
                    return "".join(lines[lines.index("\n", 1) :])
                lines.append(line)
        finally:
            overdue.cancel()
        raise AssertionError(f"it ended early: {''.join(lines)}")

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self._lines += self.process.stdout

    def wait_for_line(self, text: str) -> None:
        """Waits for a line with this text; each line counts once."""
        self._lines.remove(wait_until(lambda: self._found(text), 60))

    def has_line(self, text: str) -> bool:
        """True if such a line was printed and not consumed yet."""
        return bool(self._found(text))

    def _found(self, text: str) -> str:
        return next((line for line in self._lines if text in line), "")

    def run_script(self) -> list[dict[str, object]]:
        if shutil.which("curl") is None:
            missing("curl is not installed")
        stream = subprocess.run(
            ["sh", "-c", self.script], capture_output=True, text=True, timeout=120, check=True
        ).stdout.splitlines()
        kinds = [line[7:] for line in stream if line.startswith("event: ")]
        data = [json.loads(line[6:]) for line in stream if line.startswith("data: ")]
        return [{"event": kind, **each} for kind, each in zip(kinds, data, strict=True)]

    def end(self) -> str:
        self.process.send_signal(signal.SIGINT)
        self._listening.join(60)
        assert self.process.wait(60) == 0
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        self._listening.join(20)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def run(*words: str) -> Up:
        started.append(Up(tmp_path / "data", *words))
        return started[-1]

    yield run
    for each in started:
        each.close()


def test_the_printed_lines_run_a_job(up: Callable[..., Up], tmp_path: Path) -> None:
    running = up()
    kinds = [each["event"] for each in running.run_script()]
    assert kinds == ["hello", "queued", "running", "message", "done"]
    assert "Traceback" not in running.end()
    redis = tmp_path / "data" / "redis"
    assert not (redis / "redis.sock").exists()
    assert (redis / "appendonlydir").exists() or list(redis.rglob("*.aof"))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_an_error_before_anything_starts(tmp_path: Path, host: str) -> None:
    with socket.socket() as taken:
        taken.bind((host, 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(tmp_path / "data", port)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (69, "")
    [line] = errors.splitlines()
    assert line.startswith(f"sluice: port {port} of 127.0.0.1 is used by another process")
    assert f"PORT={port % 65535 + 1} make run" in line
    assert not (tmp_path / "data").exists()


@SLOW
def test_a_second_sluice_on_the_port_is_not_announced(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    """The first one answers at the URL of the second."""
    first = up()
    process = start(tmp_path / "other", first.port)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (69, "")
    assert "is used by another process" in errors
    assert [each["event"] for each in first.run_script()][-1] == "done"


@pytest.mark.parametrize("port", ["x", "-1", "99999999999"])
def test_an_invalid_port_is_reported_by_the_gateway(tmp_path: Path, port: str) -> None:
    process = start(tmp_path / "data", port)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 78
    assert "PORT" in errors
    assert "Sluice is up" not in out


# -- the right worker: echo, or the real handlers if there is a model ----------------------------


@pytest.fixture
def serve_fake_model(serve: Callable[..., Served], gguf: Path, tmp_path: Path) -> ServeFakeModel:
    """Serves a fake model, and announces it to `up`."""
    return lambda: serve("--gguf", gguf, data=tmp_path / "data").ready()


def steps(data: list[dict[str, object]]) -> set[object]:
    return {event["step"] for event in data}


@SLOW
def test_the_worker_follows_the_model(
    up: Callable[..., Up], serve_fake_model: ServeFakeModel
) -> None:
    running = up()
    running.wait_for_line("make model")
    served = serve_fake_model()
    running.wait_for_line("chat, plan and code are answered by small now")
    served.end(signal.SIGKILL)
    running.wait_for_line("model small: the server")
    served = serve_fake_model()
    served.end()
    running.wait_for_line("The echo worker answers all jobs")
    assert "worker.echo" in steps(running.run_script())
    assert not running.has_line("model small: the server"), "it exited normally"
    assert "Traceback" not in running.end()


@SLOW
def test_the_example_of_the_real_worker_needs_no_model(up: Callable[..., Up]) -> None:
    running = up("--worker", "real")
    running.wait_for_line("chat, plan and code need a model, and none is served")
    assert '"task":"tool"' in running.script
    data = running.run_script()
    assert data[-1]["type"] == "done"
    assert '{"value": 42}' in json.dumps(data)


@SLOW
def test_the_example_with_handlers_of_the_user(
    up: Callable[..., Up], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may replace `tool` and `chat`, and take other payloads."""
    (tmp_path / "replaced.py").write_text(HANDLERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("WORKER_HANDLERS", "replaced")
    running = up("--worker", "real")
    assert running.run_script()[-1]["type"] == "done"


HANDLERS = """
def register(registry):
    for task in ("chat", "tool"):
        @registry.handler(task)
        async def fail(context, payload):
            raise AssertionError
"""
