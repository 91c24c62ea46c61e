"""A Redis that keeps its data when it is killed."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.processes.worker import wait_until


class AofRedis:
    """A redis-server that persists every write; can be killed and restarted."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self.dir = Path(tempfile.mkdtemp(prefix="sluice-aof-"))
        self.url = f"unix://{self.dir}/s"
        self.client: Any = redis.Redis(
            unix_socket_path=f"{self.dir}/s", retry=Retry(NoBackoff(), 0)
        )
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(self._binary, "--port", "0", "--unixsocket", f"{self.dir}/s"),
                *("--dir", str(self.dir), "--save", ""),
                *("--appendonly", "yes", "--appendfsync", "always"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError):
            return bool(self.client.ping())
        return False

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)

    def restart(self) -> None:
        self.kill()
        self.start()

    def close(self) -> None:
        self.client.close()
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)
