"""Starts that must fail: one clear line, the right exit code, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.gateway.processes import PYTHON_M, TIMEOUT_S, UVICORN, environment

pytestmark = pytest.mark.process

EX_CONFIG = 78

BAD = [
    ("BACKPRESSURE_MAX_BACKLOG", "abc"),
    ("BACKPRESSURE_MAX_BACKLOG", "0"),
    ("REDIS_URL", "foo"),
    ("REDIS_URL", "http://localhost"),
    ("REDIS_URL", "redis://localhost:port/0"),
    ("REDIS_URL", "redis://localhost:99999/0"),
    ("PORT", "-1"),
    ("PORT", "65536"),
    ("PORT", "http"),
    ("JOB_TTL_S", "0"),
    ("JOB_TTL_S", "1.5"),
    ("IDEMPOTENCY_TTL_S", "0"),
    ("SSE_HEARTBEAT_S", "0"),
    ("SSE_HEARTBEAT_S", "nan"),
    ("MAX_PAYLOAD_BYTES", "-5"),
    ("LOG_LEVEL", "loud"),
    ("SSE_MAX_LIFE_S", "nan"),
    ("MAX_WAIT_S", "nan"),
]


def fail(command: tuple[str, ...], where: Path, **settings: str) -> tuple[int, str]:
    """Runs a process that exits by itself; returns its exit code and output."""
    finished = subprocess.run(
        command,
        cwd=where,
        env=environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    return finished.returncode, finished.stdout


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_setting_is_named(tmp_path: Path, name: str, value: str) -> None:
    # If the bad value were accepted, the next error would end the process anyway.
    settings = {"PORT": "0", "REDIS_URL": f"unix://{tmp_path}/none", "HOST": "256.0.0.1"}
    code, output = fail(PYTHON_M, tmp_path, **{**settings, name: value})
    assert code == EX_CONFIG, output
    [line] = output.splitlines()
    assert line.startswith("sluice: ")
    assert name in line
    if name != "REDIS_URL":  # may contain a password
        assert value in line


def test_every_bad_setting_is_named_at_once(tmp_path: Path) -> None:
    code, output = fail(PYTHON_M, tmp_path, PORT="x", JOB_TTL_S="y", REDIS_URL="z")
    assert code == EX_CONFIG
    assert len(output.splitlines()) == 1
    assert all(name in output for name in ("PORT", "JOB_TTL_S", "REDIS_URL"))


def test_a_password_in_a_bad_url_is_not_printed(tmp_path: Path) -> None:
    _, output = fail(PYTHON_M, tmp_path, REDIS_URL="rediz://user:hunter2@localhost")
    assert "REDIS_URL" in output
    assert "hunter2" not in output


@pytest.mark.parametrize("mark", ["#", "/", "?"])
def test_an_unescaped_password_is_not_printed(tmp_path: Path, mark: str) -> None:
    code, output = fail(PYTHON_M, tmp_path, REDIS_URL=f"redis://:hunter{mark}2@localhost:6379")
    assert code == EX_CONFIG
    assert "%2F" in output
    assert "hunter" not in output


def test_under_uvicorn_a_bad_setting_is_named_too(tmp_path: Path) -> None:
    code, output = fail(UVICORN, tmp_path, BACKPRESSURE_MAX_BACKLOG="abc")
    assert code != 0
    assert "BACKPRESSURE_MAX_BACKLOG" in output.splitlines()[-1]


@pytest.mark.parametrize("command", [PYTHON_M, UVICORN], ids=["python -m", "uvicorn"])
def test_a_port_in_use(tmp_path: Path, command: tuple[str, ...]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        if command == UVICORN:
            command = (*command, "--port", port)
        code, output = fail(command, tmp_path, PORT=port, REDIS_URL=f"unix://{tmp_path}/none")
    assert code != 0
    assert "address already in use" in output.lower()
    assert port in output
    assert "Traceback" not in output


def test_an_address_of_another_host(tmp_path: Path) -> None:
    settings = {"HOST": "192.0.2.1", "PORT": "0", "REDIS_URL": f"unix://{tmp_path}/none"}
    code, output = fail(PYTHON_M, tmp_path, **settings)
    assert code != 0
    assert "192.0.2.1" in output
    assert "Traceback" not in output


def test_failing_leaves_nothing_behind(tmp_path: Path) -> None:
    fail(PYTHON_M, tmp_path, PORT="x")
    assert os.listdir(tmp_path) == []
