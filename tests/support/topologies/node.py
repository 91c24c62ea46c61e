"""One server of a topology: a process on its own port that can be killed, frozen and restarted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support import ports
from tests.support.ports import HOST
from tests.support.servers import SYSTEM, require_binary
from tests.support.topologies.certificates import (
    Certificates,
    port_options,
    redis_options,
    require_tls,
)
from tests.support.topologies.waiting import until

START_TIMEOUT_S = 30.0
#: Offset of the Cluster bus port.
BUS_OFFSET = 10_000
#: Low enough that the bus ports, too, are below the ephemeral ports.
_LAST_PORT = 22_700


def pick_port() -> int:
    """A port that stays free, including its bus port."""
    return ports.pick(_LAST_PORT, offset=BUS_OFFSET)


class Node:
    """A server of a topology, by TLS if it has certificates; `start` it, and always `end` it."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        port: int,
        options: list[str],
        certificates: Certificates | None = None,
    ) -> None:
        self.port = port
        self.log_path = directory / "log"
        self._binary = binary
        self._options = [*options, *port_options(port, certificates), "--dir", str(directory)]
        self.process: subprocess.Popen[bytes] | None = None
        #: Connected to this server, whatever its role is.
        self.client = redis.Redis(
            host=HOST,
            port=port,
            socket_timeout=5.0,
            retry=Retry(NoBackoff(), 0),
            **redis_options(certificates),
        )
        raw: Any = redis.Redis(connection_pool=self.client.connection_pool)
        raw.response_callbacks.clear()
        #: The same, with raw replies.
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
        """True if the process exists, even if it is frozen."""
        return self.process is not None and self.process.poll() is None

    @property
    def role(self) -> str:
        """`master` or `slave`, as the server reports it."""
        return str(self.run("ROLE")[0].decode())

    def launch(self) -> None:
        """Starts the process without waiting for it."""
        with self.log_path.open("ab") as log:
            # In its own session, so that Ctrl-C reaches only the parent, which then stops it.
            self.process = subprocess.Popen(
                [self._binary, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        def answers() -> bool:
            if not self.alive:
                output = self.log_path.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server on port {self.port} ended: {output}")
            return bool(self.client.ping())

        until(answers, START_TIMEOUT_S, f"{self} answers")

    def start(self) -> None:
        """Starts the server and waits until it responds."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.client.connection_pool.disconnect()

    def stop(self) -> None:
        """Stops the server gracefully."""
        if self.process is not None:
            self.resume()
            self.process.terminate()
            self.process.wait(START_TIMEOUT_S)
        self.client.connection_pool.disconnect()

    def pause(self) -> None:
        """Freezes the process; its connections stay open."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.alive:
            assert self.process is not None
            self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills the server if it runs, and starts it again with the data on disk."""
        self.kill()
        self.start()

    def end(self) -> None:
        self.kill()
        self.client.close()


def common_options(*, durable: bool) -> list[str]:
    """Options of every server that stores data."""
    return [
        *("--bind", HOST, "--save", "", "--daemonize", "no"),
        *("--appendonly", "yes" if durable else "no", "--appendfsync", "always"),
        *("--stream-node-max-bytes", "1024", "--maxmemory-policy", "noeviction"),
        *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
        *("--repl-ping-replica-period", "1", "--repl-timeout", "10"),
        *("--repl-backlog-size", "32mb", "--replica-lazy-flush", "yes"),
    ]


@contextmanager
def one_node(directory: Path, certificates: Certificates | None = None) -> Iterator[Node]:
    """A single server of the system, by TLS if there are certificates."""
    binary = require_binary(SYSTEM)
    if certificates is not None:
        require_tls(binary)
    port = pick_port()
    own = directory / f"node-{port}"
    own.mkdir()
    node = Node(binary, own, port, common_options(durable=False), certificates)
    try:
        node.start()
        yield node
    finally:
        node.end()
