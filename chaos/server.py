"""The Redis server of a run; every write is on disk before it replies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.process.redis_server import find_server
from sluice.common.redis.connection import async_client
from sluice.common.redis.partitions import Partitions
from sluice.common.version import reported_version
from tests.support import ports

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class ChaosRedis:
    """A server that is killed, frozen and restarted; it restores its data from the append-only
    file.
    """

    def __init__(self, directory: Path) -> None:
        self._dir = directory / "redis"
        self._dir.mkdir()
        self.log_path = directory / "redis.log"
        self.port = ports.pick()
        self.process: subprocess.Popen[bytes] | None = None
        #: A direct connection, not affected by network faults.
        self.client: Redis = async_client(f"redis://127.0.0.1:{self.port}/0", connections=8)
        self.clients = PartitionClients.on_one_server(self.client, Partitions.create(JobKeys()))
        #: Additional settings for gateways and workers; none.
        self.settings: dict[str, str] = {}

    async def start(self) -> None:
        """Starts the server and waits until it responds."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._dir),
            "logfile": str(self.log_path),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "stream-node-max-bytes": "1024",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        # In its own session, so that Ctrl-C reaches only the harness, which then stops the process.
        self.process = subprocess.Popen(
            [str(find_server()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        await self._wait_until_ready()

    async def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            await self._wait_until_gone()

    async def stop(self) -> None:
        """Stops gracefully: Redis writes its data and exits."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            await self._wait_until_gone()

    def freeze(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kills the server at the end of the run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def aclose(self) -> None:
        await self.client.aclose()

    async def version(self) -> str:
        return " ".join(reported_version(await self.client.info("server")))

    async def _wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                await self.client.time()
                return
            except (RedisError, OSError) as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"Redis did not start: {error}; see {self.log_path}"
                    ) from error
            await asyncio.sleep(0.02)

    async def _wait_until_gone(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"Redis does not stop; see {self.log_path}")
            await asyncio.sleep(0.01)
