"""`sluice model serve` with a fake engine: announcement, watchdog, stop, errors."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.common.settings.models_dir import CHAT_FILE
from tests.support.files.gguf import HEAD, build_gguf
from tests.support.model.served import Served
from tests.support.processes.commands import CommandResult
from tests.support.processes.systemd import NotifySocket

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("starts more model servers")
UNAVAILABLE, CONFIG = 69, 78
Serve = Callable[..., Served]


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=SLOW),
        pytest.param(signal.SIGHUP, marks=SLOW),
        pytest.param(signal.SIGKILL, marks=SLOW),
    ],
)
def test_the_announcement_exists_while_it_serves(
    serve: Serve, gguf: Path, number: signal.Signals
) -> None:
    """A crash leaves it."""
    served = serve("--gguf", gguf).ready()
    announced = {"url": served.url, "model": "small", "pid": served.process.pid}
    assert served.announcement == announced
    assert served.url in served.output
    assert served.ask("/health") == {"status": "ok"}
    assert [path.name for path in served.data.iterdir()] == ["model.json"]
    took_s = served.end(number)
    if number is signal.SIGKILL:
        assert served.announcement == announced
        return
    assert served.process.returncode == 0, served.output
    assert took_s < 5
    assert list(served.data.iterdir()) == []
    assert "Traceback" not in served.output


@SLOW
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


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[NotifySocket]:
    notify = NotifySocket(tmp_path / "notify")
    yield notify
    notify.close()


def is_watchdog(message: dict[str, str]) -> bool:
    return "WATCHDOG" in message


@SLOW
def test_systemd_gets_status_readiness_watchdog_and_stop(
    serve: Serve, gguf: Path, notify: NotifySocket
) -> None:
    served = serve("--gguf", gguf, NOTIFY_SOCKET=str(notify.path), WATCHDOG_USEC="1500000")
    loading = notify.receive_until(lambda message: "STATUS" in message)
    assert loading["STATUS"] == "loading small"
    ready = notify.receive_until(lambda message: "READY" in message)
    assert ready["STATUS"].startswith("small at http://127.0.0.1:")
    assert ready["STATUS"].endswith(", 0 of 2 slots busy")
    for _ in range(3):
        notify.receive_until(is_watchdog)
    # A server that hangs sends no watchdog, so systemd ends it, which works.
    hanging = gguf.with_name(f"{gguf.name}.hangs")
    hanging.touch()
    message = notify.receive_until(lambda message: not is_watchdog(message))
    assert "llama.cpp does not answer" in message["STATUS"]
    hanging.unlink()
    notify.receive_until(is_watchdog)
    hanging.touch()
    notify.receive_until(lambda message: "does not answer" in message.get("STATUS", ""))
    assert served.end() < 10
    assert served.process.returncode == 0
    stopping = notify.receive_until(lambda message: "STOPPING" in message)
    assert stopping["STATUS"].startswith("stopping: ")


@SLOW
def test_more_slots_and_a_key(serve: Serve, gguf: Path) -> None:
    served = serve("--gguf", gguf, "--slots", 4, "--host", "0.0.0.0", MODEL_API_KEY="sesame")
    served.ready()
    assert served.url.startswith("http://127.0.0.1:")
    assert len(served.ask("/slots")) == 4


# -- errors: one clear line, and an exit code for systemd: restart or not ---------------


def refusal(served: Served, code: int) -> str:
    assert served.wait() == code, served.output
    lines = [line for line in served.output.splitlines() if not line.startswith("loading ")]
    assert len(lines) == 1, served.output
    assert lines[0].startswith("sluice: ")
    assert not (served.data / "model.json").exists()
    return lines[0]


@SLOW
def test_a_missing_installation(serve: Serve, tmp_path: Path) -> None:
    """Without weights, and with incomplete ones."""
    for _ in range(2):
        output = refusal(serve(SLUICE_MODELS_DIR=str(tmp_path)), CONFIG)
        assert "sluice model install" in output
        (tmp_path / CHAT_FILE).write_bytes(b"GGUF")


@SLOW
def test_a_missing_engine(serve: Serve, gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "xllamacpp.py").write_text("raise ImportError('no such thing')")
    output = refusal(serve("--gguf", gguf, PYTHONPATH=str(tmp_path / "none")), CONFIG)
    assert "sluice model install" in output


VALID, HUGE = build_gguf(HEAD), build_gguf({**HEAD, "llama.block_count": 1_000_000})


@SLOW
@pytest.mark.parametrize(
    ("name", "content", "words", "settings", "code", "remedy"),
    [
        *(("bad", content, [], {}, CONFIG, "--gguf") for content in (b"", b"noise", VALID[:300])),
        ("refused", VALID, [], {}, CONFIG, "--gguf"),  # the fake engine cannot load it
        ("huge", HUGE, [], {}, UNAVAILABLE, "MB.*--context"),
        ("good", VALID, ["--host", "0.0.0.0"], {}, CONFIG, "MODEL_API_KEY"),
        ("good", VALID, ["--context", "9000"], {}, CONFIG, "--context"),
        ("good", VALID, [], {"LOG_LEVEL": "loud"}, CONFIG, "LOG_LEVEL"),
        ("good", VALID, [], {"SLUICE_DATA_DIR": "/proc/none"}, CONFIG, "SLUICE_DATA_DIR"),
    ],
)
def test_an_invalid_model_or_option_has_a_remedy(
    serve: Serve,
    tmp_path: Path,
    name: str,
    content: bytes,
    words: list[str],
    settings: dict[str, str],
    code: int,
    remedy: str,
) -> None:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(content)
    assert re.search(remedy, refusal(serve("--gguf", path, *words, **settings), code))


@SLOW
def test_a_port_in_use(serve: Serve, gguf: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        output = refusal(serve("--gguf", gguf, "--port", port), UNAVAILABLE)
    assert str(port) in output
    assert "--port" in output


@pytest.mark.parametrize("words", [[], ["serve", "--port", "x"], ["serve", "--slots", "0"]])
def test_an_invalid_command(command: Callable[..., CommandResult], words: list[str]) -> None:
    assert command("model", *words).code == 2
