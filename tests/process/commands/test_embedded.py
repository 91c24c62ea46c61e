"""The private Redis: the first process starts it, the last one stops it."""

from __future__ import annotations

import contextlib
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

from common.errors import NoRedisServer
from common.process import embedded_redis
from common.process.embedded_redis import EmbeddedRedis
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import BUNDLED, SYSTEM, require_binary

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
    """Restricts the private server to one kind."""
    binary = require_binary(request.param)
    monkeypatch.setattr(embedded_redis, "_candidates", lambda: [Path(binary)])
    return binary


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


@pytest.mark.usefixtures("only")
def test_data_survives_a_restart(data_dir: Path) -> None:
    server = EmbeddedRedis(data_dir, fsync="always")
    for expected in (None, b"1", b"2"):
        server.acquire()
        with client(server) as connection:
            assert connection.get("k") == expected
            connection.set("k", int(expected or 0) + 1)
        server.release()


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


@pytest.fixture
def fake_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a fake `redis-server` on an otherwise empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(script: str) -> Path:
        binary = tmp_path / "redis-server"
        binary.write_text(f"#!/bin/sh\n{script}\n")
        binary.chmod(0o755)
        return binary

    return write


def test_a_supported_server_on_the_path_is_used(fake_path: Callable[[str], Path]) -> None:
    binary = fake_path("echo 'Redis server v=10.2.0 sha=0'")
    assert embedded_redis.find_server() == binary


@pytest.mark.parametrize(
    "script", ["", "echo 'Redis server v=6.0.16 sha=0'", "exit 1", "echo hello", "kill -9 $$"]
)
def test_an_unusable_server_on_the_path_is_skipped(
    fake_path: Callable[[str], Path], script: str
) -> None:
    if script:  # otherwise there is none
        fake_path(script)
    assert str(embedded_redis.find_server()) == require_binary(BUNDLED)


def test_the_error_without_any_server_has_a_remedy(
    fake_path: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, data_dir: Path
) -> None:
    monkeypatch.setattr(embedded_redis.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoRedisServer, match=r"redis-server >= 6\.2 found; install one.*REDIS_URL"):
        embedded_redis.find_server()
    binary = fake_path("echo 'Redis server v=5.0.7 sha=0'")
    server = EmbeddedRedis(data_dir)
    with pytest.raises(NoRedisServer, match=f"{binary} is Redis 5.0.7"):
        server.acquire()
    server.release()


def test_a_server_that_does_not_start_is_a_clear_error(
    fake_path: Callable[[str], Path], data_dir: Path
) -> None:
    fake_path('[ "$1" = --version ] && echo "Redis server v=7.0.0" || exit 3')
    server = EmbeddedRedis(data_dir)
    with pytest.raises(NoRedisServer, match=r"did not start.*redis\.log"):
        server.acquire()
    server.release()


# -- processes --------------------------------------------------------------------------------


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
