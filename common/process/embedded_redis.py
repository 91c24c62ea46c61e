"""A private Redis server, used if REDIS_URL is not set.

All processes with the same data directory share one server: the first one starts it, the last one
stops it. Each process holds a shared lock on a file, so a killed process stops counting at once.
Payloads and results are in its files, so only their owner may read them.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sluice.common.errors import NoRedisServer
from sluice.common.process.redis_server import find_server

log = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
#: sun_path holds 108 bytes on Linux, 104 on macOS, with the closing NUL.
LONGEST_SOCKET_PATH = 100
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600


class EmbeddedRedis:
    """The use of a data directory's private server by this process."""

    def __init__(self, data_dir: str | Path, fsync: str = "everysec") -> None:
        self._dir = Path(data_dir).absolute() / "redis"
        self._fsync = fsync
        self._users: IO[str] | None = None
        self._log_path = self._dir / "redis.log"
        self.socket_path = _socket_path(self._dir)

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    def acquire(self) -> str:
        """Start the server, or use the running one; returns its URL."""
        try:
            self._dir.mkdir(parents=True, exist_ok=True, mode=_DIRECTORY_MODE)
            if self._dir.stat().st_uid == os.geteuid():
                self._dir.chmod(_DIRECTORY_MODE)
            start_lock = open(self._dir / "start.lock", "w")  # noqa: SIM115
        except OSError as error:
            raise NoRedisServer(f"SLUICE_DATA_DIR cannot be used: {error}") from error
        with start_lock:
            fcntl.flock(start_lock, fcntl.LOCK_EX)
            self._users = open(self._dir / "users.lock", "w")  # noqa: SIM115
            fcntl.flock(self._users, fcntl.LOCK_SH)
            # A slow or loading server counts as running: a second one would corrupt its files.
            server = None if _reachable(self.socket_path) else self._start()
            self._wait_until_ready(server)
        return self.url

    def release(self) -> None:
        """Stop using the server; the last process stops it and waits until it has saved."""
        if self._users is None:
            return
        with open(self._dir / "start.lock", "w") as start_lock:
            fcntl.flock(start_lock, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # other processes still use it
            else:
                self._stop()
            self._users.close()
            self._users = None

    def _start(self) -> subprocess.Popen[bytes]:
        binary = find_server()
        self._make_files_private()
        # A separate session: Ctrl-C in a terminal must not reach Redis before this process.
        process = subprocess.Popen(
            [str(binary), *self._options()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            umask=0o077,
        )
        log.info("starting a private redis: %s on %s", binary, self.socket_path)
        return process

    def _make_files_private(self) -> None:
        """Those of an earlier release, which every user could read. No server writes them now."""
        for path in self._dir.rglob("*"):
            found = path.lstat()
            if found.st_mode & 0o077 and found.st_uid == os.geteuid() and not path.is_symlink():
                path.chmod(_DIRECTORY_MODE if path.is_dir() else _FILE_MODE)

    def _wait_until_ready(self, server: subprocess.Popen[bytes] | None) -> None:
        """Wait for the first answer, however long it takes to load the append-only file."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.socket_path):
            if _reachable(self.socket_path):
                deadline = time.monotonic() + START_TIMEOUT_S
            if time.monotonic() > deadline or (server is not None and server.poll() is not None):
                if server is not None:
                    server.kill()
                    server.wait()
                raise NoRedisServer(
                    f"the private redis did not start; its log {self._log_path} ends with: "
                    f"{_tail(self._log_path)}"
                )
            time.sleep(0.02)

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self._dir),
            "pidfile": str(self._dir / "redis.pid"),
            "logfile": str(self._log_path),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "maxmemory-policy": "noeviction",
            # Redis allocates a node of this size for each small events stream.
            "stream-node-max-bytes": "1024",
        }
        return [part for name, value in options.items() for part in (f"--{name}", value)]

    def _stop(self) -> None:
        pid = _server_pid(self.socket_path)
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        if _alive(pid):
            log.warning("private redis %d is still saving after %.0f s", pid, STOP_TIMEOUT_S)
        else:
            log.info("private redis stopped")


def _socket_path(directory: Path) -> Path:
    path = directory / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid():
        raise NoRedisServer(f"{short} belongs to another user; set SLUICE_DATA_DIR elsewhere")
    return short / "redis.sock"


def _client(socket_path: Path) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(socket_path), socket_timeout=2, retry=Retry(NoBackoff(), 0)
    )


def _answers(socket_path: Path) -> bool:
    try:
        with _client(socket_path) as client:
            return bool(client.ping())
    except redis.ResponseError:  # MISCONF: its disk is full, so it accepts no writes
        return True
    except (redis.RedisError, OSError):
        return False


def _reachable(socket_path: Path) -> bool:
    """True if a server listens, ready or not."""
    try:
        with _client(socket_path) as client:
            client.ping()
    except (redis.ConnectionError, OSError) as error:
        return isinstance(error, redis.exceptions.BusyLoadingError)
    except redis.RedisError:  # slow, but running
        return True
    return True


def _server_pid(socket_path: Path) -> int | None:
    try:
        with _client(socket_path) as client:
            return int(client.info("server")["process_id"])
    except (redis.RedisError, OSError):
        return None


def _alive(pid: int) -> bool:
    try:
        # Reaps the server if it is a child process; a zombie would count as alive for ever.
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _tail(path: Path, lines: int = 3) -> str:
    try:
        return " | ".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
