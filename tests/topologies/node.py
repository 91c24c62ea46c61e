"""One server of a topology: a process on a port of its own, to be killed, frozen and restarted."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import ports
from tests.support.ports import HOST
from tests.topologies.waiting import until

START_TIMEOUT_S = 30.0
#: Where a Cluster's nodes talk to each other.
BUS_OFFSET = 10_000
#: So far up that the buses, too, lie below the ports of outgoing connections.
_LAST_PORT = 22_700


def pick_port() -> int:
    """A port that stays free, with its bus."""
    return ports.pick(_LAST_PORT, beside=BUS_OFFSET)


class Node:
    """A server of a topology; `start` it, and `end` it whatever happened."""

    def __init__(self, binary: str, directory: Path, port: int, words: list[str]) -> None:
        self.port = port
        self.log_path = directory / "log"
        self._binary = binary
        self._dir = directory
        self._words = words
        self.process: subprocess.Popen[bytes] | None = None
        #: Straight to this server, whatever it is at the moment.
        self.client = redis.Redis(
            host=HOST, port=port, socket_timeout=5.0, retry=Retry(NoBackoff(), 0)
        )
        raw: Any = redis.Redis(connection_pool=self.client.connection_pool)
        raw.response_callbacks.clear()
        #: The same, with answers as they come.
        self.run = raw.execute_command

    def __repr__(self) -> str:
        return f"<Node {self.port}>"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self.process is not None and self.process.poll() is None

    @property
    def role(self) -> str:
        """`master` or `slave`, in its own words."""
        return str(self.run("ROLE")[0].decode())

    def launch(self) -> None:
        """Start the process, and wait for nothing."""
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C must reach whoever started it first, who then ends it.
            self.process = subprocess.Popen(
                [self._binary, *self._words, "--port", str(self.port), "--dir", str(self._dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it answers."""

        def answers() -> bool:
            if not self.alive:
                last_words = self.log_path.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server on port {self.port} ended: {last_words}")
            return bool(self.client.ping())

        until(answers, START_TIMEOUT_S, f"{self} answers")

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.client.connection_pool.disconnect()

    def stop(self) -> None:
        """Politely."""
        if self.process is not None:
            self.resume()
            self.process.terminate()
            self.process.wait(START_TIMEOUT_S)
        self.client.connection_pool.disconnect()

    def pause(self) -> None:
        """Let it do nothing; its connections stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self.alive:
            assert self.process is not None
            self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """kill -9 if it runs, and start again from what is on disk."""
        self.kill()
        self.start()

    def end(self) -> None:
        """Leave nothing running."""
        self.kill()
        self.client.close()


def common_words(*, durable: bool) -> list[str]:
    """Options of every server that keeps data."""
    return [
        *("--bind", HOST, "--save", "", "--daemonize", "no"),
        *("--appendonly", "yes" if durable else "no", "--appendfsync", "always"),
        *("--stream-node-max-bytes", "1024", "--maxmemory-policy", "noeviction"),
        *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
        *("--repl-ping-replica-period", "1", "--repl-timeout", "10"),
        *("--repl-backlog-size", "32mb", "--replica-lazy-flush", "yes"),
    ]
