"""`make run` as a newcomer sees it: one command, two curl lines, Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.backends import missing

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(tmp_path: Path, port: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PORT": str(port), "SLUICE_DATA_DIR": str(tmp_path)}
    env.pop("REDIS_URL", None)
    return subprocess.Popen(
        [sys.executable, "-m", "client", "up"],
        env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def printed_script(process: subprocess.Popen[str]) -> str:
    """The lines to copy, from what the command printed."""
    assert process.stdout is not None
    overdue = threading.Timer(60, process.kill)
    overdue.start()
    lines: list[str] = []
    try:
        for line in process.stdout:
            if line.startswith("API:"):
                return "".join(lines[lines.index("\n", 1) :])
            lines.append(line)
    finally:
        overdue.cancel()
    raise AssertionError(f"it ended early: {''.join(lines)}")


def test_a_newcomer_copies_two_lines_and_sees_the_job(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        missing("curl is not installed")
    process = start(tmp_path, free_port())
    try:
        script = printed_script(process)
        seen = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        events = [line[7:] for line in seen.splitlines() if line.startswith("event: ")]
        assert events == ["hello", "queued", "running", "message", "done"]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not (tmp_path / "redis" / "redis.sock").exists()
    assert (tmp_path / "redis" / "appendonlydir").exists() or list(tmp_path.rglob("*.aof"))


def test_a_taken_port_is_named_and_everything_stops(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(tmp_path, taken.getsockname()[1])
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "address already in use" in errors
    assert "the gateway ended" in errors
    assert not (tmp_path / "redis" / "redis.sock").exists()
