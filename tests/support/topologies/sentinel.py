"""A master with replicas and the Sentinels that watch them, with short timeouts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.support.ports import HOST
from tests.support.servers import SYSTEM, require_binary
from tests.support.topologies.certificates import Certificates, require_tls
from tests.support.topologies.node import Node, common_options, pick_port
from tests.support.topologies.waiting import until

#: Name of the master in Sentinel.
NAME = "mymaster"
#: Before 7.0, Sentinels query a server's role rarely.
SETTLE_S = 60.0
#: A server that does not respond for this long is considered down, unless a test changes it.
DOWN_AFTER_MS = 800
_FAILOVER_TIMEOUT_MS = 4000
#: Intervals of Sentinel, which can be set since 7.0. A restarted master becomes a replica after
#: four times the second one. A Sentinel that was frozen waits for the last one before it acts.
_PERIODS_MS = {
    "info-period": 400,
    "publish-period": 400,
    "ask-period": 200,
    "ping-period": 200,
    "tilt-period": 2000,
}


class SentinelSet:
    """The servers and their Sentinels."""

    def __init__(
        self,
        directory: Path,
        binary: str,
        *,
        durable: bool,
        down_after_ms: int,
        certificates: Certificates | None = None,
    ) -> None:
        self._dir = directory
        self._certificates = certificates
        self._binary = binary
        self._durable = durable
        self._down_after_ms = down_after_ms
        self.nodes: list[Node] = []
        self.sentinels: list[Node] = []

    @property
    def url(self) -> str:
        addresses = ",".join(sentinel.address for sentinel in self.sentinels)
        if self._certificates is not None:
            return f"rediss+sentinel://{addresses}/{NAME}{self._certificates.query}"
        return f"redis+sentinel://{addresses}/{NAME}"

    @property
    def master(self) -> Node:
        """The master as soon as most Sentinels agree on it."""
        return until(self._agreed_master, SETTLE_S, "Sentinels agree on a master")

    @property
    def replicas(self) -> list[Node]:
        """Live servers other than the master."""
        master = self.master
        return [node for node in self.nodes if node.alive and node is not master]

    def _agreed_master(self) -> Node | None:
        votes = [self._master_of(sentinel) for sentinel in self.sentinels if sentinel.alive]
        for node in self.nodes:
            if votes.count(node.port) * 2 > len(self.sentinels):
                return node
        return None

    def _master_of(self, sentinel: Node) -> int:
        answer = sentinel.run("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME)
        return int(answer[1]) if answer else 0

    def start(self, replicas: int, sentinels: int) -> None:
        """Starts everything and waits until all Sentinels know each other and all servers."""
        self.nodes = [self._node(number) for number in range(replicas + 1)]
        first = self.nodes[0]
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()
        for node in self.nodes[1:]:
            node.client.replicaof(HOST, str(first.port))
        self.wait_in_sync(replicas, of=first)
        self.sentinels = [self._sentinel(number, sentinels) for number in range(sentinels)]
        for sentinel in self.sentinels:
            sentinel.launch()
        for sentinel in self.sentinels:
            sentinel.wait_ready()
            self._shorten_intervals(sentinel)
        self.wait_known()

    def _node(self, number: int) -> Node:
        directory = self._dir / f"node-{number}"
        directory.mkdir()
        words = common_options(durable=self._durable)
        return Node(self._binary, directory, pick_port(), words, self._certificates)

    def _sentinel(self, number: int, of: int) -> Node:
        directory = self._dir / f"sentinel-{number}"
        directory.mkdir()
        config = directory / "sentinel.conf"
        config.write_text(
            f"sentinel monitor {NAME} {HOST} {self.nodes[0].port} {of // 2 + 1}\n"
            f"sentinel down-after-milliseconds {NAME} {self._down_after_ms}\n"
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}\n"
            f"sentinel parallel-syncs {NAME} 8\n"
        )
        words = [str(config), "--sentinel", "--bind", HOST, "--daemonize", "no"]
        return Node(self._binary, directory, pick_port(), words, self._certificates)

    def _shorten_intervals(self, sentinel: Node) -> None:
        for name, milliseconds in _PERIODS_MS.items():
            try:
                sentinel.run("SENTINEL", "DEBUG", name, milliseconds)
            except redis.ResponseError:
                return  # before 7.0: the intervals are fixed

    def wait_known(self) -> None:
        """Waits until each Sentinel knows the other live ones and all live replicas."""
        sentinels = [sentinel for sentinel in self.sentinels if sentinel.alive]

        def known() -> bool:
            return all(self._knows(sentinel, len(sentinels) - 1) for sentinel in sentinels)

        until(known, SETTLE_S, "all Sentinels to know all servers")

    def _knows(self, sentinel: Node, others: int) -> bool:
        flat = sentinel.run("SENTINEL", "MASTER", NAME)
        facts = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2])}
        replicas = sum(node.alive for node in self.nodes) - 1
        return (
            int(facts["num-other-sentinels"]) >= others
            and int(facts["num-slaves"]) >= replicas
            and "down" not in facts.get("flags", "")
        )

    def wait_in_sync(self, replicas: int, *, of: Node | None = None) -> None:
        """Waits until this many replicas have everything that the master has now."""
        # Offset of each master when it was first seen. It grows constantly, because Sentinels
        # communicate through the servers.
        offsets: dict[int, int] = {}

        def in_sync() -> bool:
            master = of or self._agreed_master()
            if master is None:
                return False
            role = master.run("ROLE")
            if role[0] != b"master" or not role[1]:
                return False
            offset = offsets.setdefault(master.port, int(role[1]))
            return sum(int(replica[2]) >= offset for replica in role[2]) >= replicas

        until(in_sync, SETTLE_S, f"{replicas} replicas are in sync")

    def failover(self) -> Node:
        """Starts a failover as an operator would; returns the new master."""
        old, sentinel_asked = self.master, self.sentinels[0]

        def changed() -> Node | None:
            # A failover that was started and failed must be requested again. While one is in
            # progress, the request is refused.
            if self._master_of(sentinel_asked) == old.port:
                sentinel_asked.run("SENTINEL", "FAILOVER", NAME)
            return self._other_than(old)

        return until(changed, SETTLE_S, f"another master than {old}")

    def wait_failover(self, old: Node) -> Node:
        """Waits until most Sentinels report another master, and it has that role."""
        return until(lambda: self._other_than(old), SETTLE_S, f"another master than {old}")

    def _other_than(self, old: Node) -> Node | None:
        master = self._agreed_master()
        return master if master and master is not old and master.role == "master" else None

    def flush(self) -> None:
        """Removes all keys and scripts from all servers."""
        client = self.master.client
        client.flushall()
        client.script_flush()

    def end(self) -> None:
        """Kills all servers."""
        for node in (*self.sentinels, *self.nodes):
            node.end()


@contextmanager
def sentinel_set(
    replicas: int = 2,
    sentinels: int = 3,
    *,
    kind: str = SYSTEM,
    durable: bool = False,
    down_after_ms: int = DOWN_AFTER_MS,
    certificates: Certificates | None = None,
) -> Iterator[SentinelSet]:
    """A Sentinel set of servers of one kind; with `durable`, a killed node keeps its data. With
    certificates, all of them use TLS only.
    """
    binary = require_binary(kind)
    if certificates is not None:
        require_tls(binary)
    directory = Path(tempfile.mkdtemp(prefix="sluice-sentinel-"))
    servers = SentinelSet(
        directory,
        binary,
        durable=durable,
        down_after_ms=down_after_ms,
        certificates=certificates,
    )
    try:
        servers.start(replicas, sentinels)
        yield servers
    finally:
        servers.end()
        shutil.rmtree(directory, ignore_errors=True)
