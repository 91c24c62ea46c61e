"""`sluice model serve` with a fake engine: announcement, watchdog, stop, errors."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.settings.models_dir import CHAT_FILE
from ops.model import command
from tests.ops.model.gguf_files import HEAD, build_gguf
from tests.process.served import FAKE_ENGINE, Served
from tests.worker.processes import ROOT

pytestmark = pytest.mark.process

UNAVAILABLE, CONFIG = 69, 78


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "xllamacpp.py").write_text(FAKE_ENGINE)
    return tmp_path / "engine"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    path.write_bytes(build_gguf(HEAD))
    return path


@pytest.fixture
def serve(tmp_path: Path, engine: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*words: object, **env: str) -> Served:
        env.setdefault("PYTHONPATH", str(engine))
        started.append(Served(tmp_path / f"served-{len(started)}", *map(str, words), **env))
        return started[-1]

    yield start
    for served in started:
        served.close()


Serve = Callable[..., Served]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_announcement_exists_while_it_serves(
    serve: Serve, gguf: Path, number: signal.Signals
) -> None:
    served = serve("--gguf", gguf).ready()
    assert served.announcement == {"url": served.url, "model": "small", "pid": served.process.pid}
    assert served.url in served.output
    assert served.ask("/health") == {"status": "ok"}
    assert [path.name for path in served.data.iterdir()] == ["model.json"]
    took_s = served.end(number)
    assert served.process.returncode == 0, served.output
    assert took_s < 5
    assert list(served.data.iterdir()) == []
    assert "Traceback" not in served.output


def test_a_crash_leaves_the_announcement(serve: Serve, gguf: Path) -> None:
    served = serve("--gguf", gguf).ready()
    served.end(signal.SIGKILL)
    assert served.announcement["pid"] == served.process.pid


def test_the_announcement_of_another_server_is_kept(
    serve: Serve, gguf: Path, tmp_path: Path
) -> None:
    data = tmp_path / "shared"
    first = serve("--gguf", gguf, data=data).ready()
    second = serve("--gguf", gguf, "--name", "second", data=data).ready()
    first.end()
    assert second.announcement["model"] == "second"
    second.end()
    assert not (data / "model.json").exists()


class NotifySocket:
    """The notification socket of systemd."""

    def __init__(self, path: Path) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(str(path))
        self._line.settimeout(30)
        self.settings = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1500000"}

    def receive(self, matches: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        while True:
            datagram = self._line.recv(65536).decode()
            message = dict(line.split("=", 1) for line in datagram.splitlines())
            if matches(message):
                return message

    def close(self) -> None:
        self._line.close()


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    notify = NotifySocket(tmp_path / "notify")
    yield notify
    notify.close()


def test_systemd_gets_status_readiness_watchdog_and_stop(
    serve: Serve, gguf: Path, notify: NotifySocket
) -> None:
    served = serve("--gguf", gguf, **notify.settings)
    assert notify.receive(lambda message: "STATUS" in message)["STATUS"] == "loading small"
    ready = notify.receive(lambda message: "READY" in message)
    assert ready["STATUS"].startswith("small at http://127.0.0.1:")
    assert ready["STATUS"].endswith(", 0 of 2 slots busy")
    for _ in range(3):
        notify.receive(lambda message: "WATCHDOG" in message)
    served.process.send_signal(signal.SIGTERM)
    message = notify.receive(lambda message: "STOPPING" in message)
    assert message["STATUS"].startswith("stopping: ")
    assert served.wait() == 0


def test_a_hanging_model_server_sends_no_watchdog(
    serve: Serve, gguf: Path, notify: NotifySocket
) -> None:
    """So systemd ends it, which works."""
    served = serve("--gguf", gguf, **notify.settings)
    notify.receive(lambda message: "WATCHDOG" in message)
    hanging = gguf.with_name(f"{gguf.name}.hangs")
    hanging.touch()
    message = notify.receive(lambda message: "STATUS" in message and "WATCHDOG" not in message)
    assert "llama.cpp does not answer" in message["STATUS"]
    hanging.unlink()
    notify.receive(lambda message: "WATCHDOG" in message)
    hanging.touch()
    notify.receive(lambda message: "does not answer" in message.get("STATUS", ""))
    assert served.end() < 10
    assert served.process.returncode == 0


def test_more_slots_and_a_key(serve: Serve, gguf: Path) -> None:
    served = serve("--gguf", gguf, "--slots", 4, "--host", "0.0.0.0", MODEL_API_KEY="sesame")
    served.ready()
    assert served.url.startswith("http://127.0.0.1:")
    assert len(served.ask("/slots")) == 4


# -- errors: one clear line, and an exit code that tells systemd whether to restart ---------------


def refusal(served: Served, code: int) -> str:
    assert served.wait() == code, served.output
    lines = [line for line in served.output.splitlines() if not line.startswith("loading ")]
    assert len(lines) == 1, served.output
    assert lines[0].startswith("sluice: ")
    assert not (served.data / "model.json").exists()
    return lines[0]


def test_a_missing_installation(serve: Serve, tmp_path: Path) -> None:
    output = refusal(serve(SLUICE_MODELS_DIR=str(tmp_path)), CONFIG)
    assert "sluice model install" in output


def test_incomplete_weights(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / CHAT_FILE).write_bytes(b"GGUF")
    output = refusal(serve(SLUICE_MODELS_DIR=str(tmp_path)), CONFIG)
    assert "sluice model install" in output


def test_a_missing_engine(serve: Serve, gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "xllamacpp.py").write_text("raise ImportError('no such thing')")
    output = refusal(serve("--gguf", gguf, PYTHONPATH=str(tmp_path / "none")), CONFIG)
    assert "sluice model install" in output


@pytest.mark.parametrize("content", [b"", b"nonsense", build_gguf(HEAD)[:300]])
def test_a_file_that_is_not_a_model(serve: Serve, tmp_path: Path, content: bytes) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(content)
    assert "--gguf" in refusal(serve("--gguf", bad), CONFIG)


def test_a_model_that_llama_cpp_cannot_load(serve: Serve, gguf: Path) -> None:
    other = gguf.rename(gguf.with_name("refused.gguf"))
    assert "--gguf" in refusal(serve("--gguf", other), CONFIG)


def test_not_enough_memory(serve: Serve, tmp_path: Path) -> None:
    huge = tmp_path / "huge.gguf"
    huge.write_bytes(build_gguf({**HEAD, "llama.block_count": 1_000_000}))
    output = refusal(serve("--gguf", huge), UNAVAILABLE)
    assert "MB" in output
    assert "--context" in output


def test_a_port_in_use(serve: Serve, gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = refusal(serve("--gguf", gguf, "--port", port), UNAVAILABLE)
    assert str(port) in output
    assert "--port" in output


@pytest.mark.parametrize(
    ("words", "settings", "word"),
    [
        (["--host", "0.0.0.0"], {}, "MODEL_API_KEY"),
        (["--context", "9000"], {}, "--context"),
        ([], {"LOG_LEVEL": "loud"}, "LOG_LEVEL"),
        ([], {"SLUICE_DATA_DIR": "/proc/none"}, "SLUICE_DATA_DIR"),
    ],
)
def test_invalid_options_exit_with_78(
    serve: Serve, gguf: Path, words: list[str], settings: dict[str, str], word: str
) -> None:
    assert word in refusal(serve("--gguf", gguf, *words, **settings), CONFIG)


def sluice(*words: str, **env: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "sluice", *words],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("words", [[], ["serve", "--port", "x"], ["serve", "--slots", "0"]])
def test_an_invalid_command(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == 2


def test_status_shows_the_served_model(serve: Serve, gguf: Path, tmp_path: Path) -> None:
    served = serve("--gguf", gguf).ready()
    env = {"SLUICE_DATA_DIR": str(served.data), "SLUICE_MODELS_DIR": str(tmp_path)}
    message = sluice("model", "status", **env)
    assert message.returncode == 0
    assert f"served   small at {served.url}, 0 of 2 slots busy" in message.stdout
    found = json.loads(sluice("model", "status", "-o", "json", **env).stdout)
    assert found["served"]["seen"]["state"] == "up"
    assert {each["what"]: each["place"] for each in found["installed"]}["chat"] is None
