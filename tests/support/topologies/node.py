"""Servers on separate ports."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import redis

from tests.support import ports
from tests.support.ports import HOST
from tests.support.servers import SYSTEM, RedisProcess, require_binary
from tests.support.topologies.certificates import (
    Certificates,
    port_options,
    redis_options,
    require_tls,
)

Self = TypeVar("Self", bound="Topology")

#: Failure timeout for tests that kill no server: a pause of the machine must not cause a failover.
LONG_TIMEOUT_MS = 30_000
#: Offset of the Cluster bus port.
BUS_OFFSET = 10_000
#: Low enough that the bus ports, too, are below the ephemeral ports.
_LAST_PORT = 22_700


def pick_port() -> int:
    """A port that stays free, including its bus port."""
    return ports.pick(_LAST_PORT, offset=BUS_OFFSET)


class Node(RedisProcess):
    """A server on its own port, by TLS if it has certificates."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        port: int,
        options: list[str],
        certificates: Certificates | None = None,
    ) -> None:
        self.port = port
        super().__init__(
            [binary, *options, *port_options(port, certificates), "--dir", str(directory)],
            directory / "log",
            host=HOST,
            port=port,
            socket_timeout=5.0,
            **redis_options(certificates),
        )
        raw: Any = redis.Redis(connection_pool=self.client.connection_pool)
        raw.response_callbacks.clear()
        #: The client's `execute_command`, with raw replies.
        self.run = raw.execute_command

    def __repr__(self) -> str:
        return f"<Node {self.port}>"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def role(self) -> str:
        """`master` or `slave`, as the server reports it."""
        return str(self.run("ROLE")[0].decode())


def common_options(*, durable: bool) -> list[str]:
    return [
        *("--bind", HOST, "--save", "", "--daemonize", "no"),
        *("--appendonly", "yes" if durable else "no", "--appendfsync", "always"),
        *("--stream-node-max-bytes", "1024", "--maxmemory-policy", "noeviction"),
        *("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
        *("--repl-ping-replica-period", "1", "--repl-timeout", "10"),
        *("--repl-backlog-size", "32mb", "--replica-lazy-flush", "yes"),
    ]


class Topology:
    """Servers of one kind; all of them end with the block.

    With `durable`, a killed node keeps its data. With certificates, all of them use TLS only.
    """

    def __init__(
        self, *, kind: str = SYSTEM, durable: bool = False, certificates: Certificates | None = None
    ) -> None:
        self._binary = require_binary(kind)
        if certificates is not None:
            require_tls(self._binary)
        self._certificates = certificates
        self._durable = durable
        self._made: list[Node] = []
        self._dir = Path(tempfile.mkdtemp(prefix="sluice-topology-"))

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._made:
            node.end()
        shutil.rmtree(self._dir, ignore_errors=True)

    def _node(self, *options: str) -> Node:
        """A server that stores data; not started."""
        return self._process([*common_options(durable=self._durable), *options])

    def _process(self, options: list[str], config: str = "") -> Node:
        """A server, or a Sentinel with a configuration file; not started."""
        port = pick_port()
        directory = self._dir / f"node-{port}"
        directory.mkdir()
        if config:
            (directory / "conf").write_text(config)
            options = [str(directory / "conf"), *options]
        self._made.append(Node(self._binary, directory, port, options, self._certificates))
        return self._made[-1]

    def _url(self, scheme: str, nodes: list[Node], path: str = "") -> str:
        addresses = ",".join(node.address for node in nodes)
        if self._certificates is not None:
            return f"rediss+{scheme}://{addresses}{path}{self._certificates.query}"
        return f"redis+{scheme}://{addresses}{path}"


def start_all(nodes: list[Node]) -> None:
    """Starts servers at the same time."""
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_ready()


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
