"""The private Redis server of a run; same server and settings for every program."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.pipe import Pipe
from sluice.common.process.redis_server import find_server

START_TIMEOUT_S = 20.0
#: Sluice's setting of stream-node-max-bytes, and the default of Redis.
SHIPPED_NODE_BYTES, DEFAULT_NODE_BYTES = 1024, 4096


class BenchRedis:
    """A running server and a connection for measurements."""

    def __init__(self, socket_path: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.socket_path = socket_path
        self._port = port
        self.process = process
        self.pipe = _connect(socket_path, process)

    @property
    def url(self) -> str:
        """URL for all programs: TCP on loopback, as in the contract's default."""
        return f"redis://127.0.0.1:{self._port}/0"

    def clear(self) -> None:
        """Removes all data and resets all counters."""
        self.pipe.ask([("FLUSHALL", "SYNC"), ("CONFIG", "RESETSTAT")])

    def info(self, section: str) -> dict[str, str]:
        text: str = self.pipe.one("INFO", section).decode()
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        return {name: value for name, _, value in pairs}

    def command_calls(self) -> dict[str, int]:
        """Number of calls per command since `clear`, including those inside scripts."""
        return {
            name.removeprefix("cmdstat_"): int(value.partition("calls=")[2].partition(",")[0])
            for name, value in self.info("commandstats").items()
        }

    def cpu_seconds(self) -> float:
        cpu = self.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def used_memory(self) -> int:
        return int(self.info("memory")["used_memory"])

    def clients(self) -> list[str]:
        """CLIENT LIST, one line per connection."""
        listing: bytes = self.pipe.one("CLIENT", "LIST")
        return listing.decode().splitlines()


@contextmanager
def private_redis(max_clients: int) -> Iterator[BenchRedis]:
    """Runs a server in a temporary directory within the block."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as directory:
        socket_path = Path(directory) / "redis.sock"
        port = _free_port()
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "unixsocket": str(socket_path),
            "dir": directory,
            "logfile": str(Path(directory) / "redis.log"),
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "maxclients": str(max_clients),
            "stream-node-max-bytes": str(SHIPPED_NODE_BYTES),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        process = subprocess.Popen(
            [str(find_server()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            server = BenchRedis(socket_path, port, process)
            try:
                yield server
            finally:
                server.pipe.close()
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _connect(socket_path: Path, process: subprocess.Popen[bytes]) -> Pipe:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            pipe = Pipe(socket_path)
            pipe.one("PING")
            return pipe
        except (OSError, ConnectionError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the private redis did not start: {error}") from error
            time.sleep(0.02)
