"""A master with replicas and the Sentinels that watch them, with short timeouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from tests.support.ports import HOST
from tests.support.topologies.node import Node, Topology, start_all
from tests.support.waiting import until

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


class SentinelSet(Topology):
    """The servers and their Sentinels."""

    def __init__(self, down_after_ms: int = DOWN_AFTER_MS, **options: Any) -> None:
        super().__init__(**options)
        self._down_after_ms = down_after_ms
        self.nodes: list[Node] = []
        self.sentinels: list[Node] = []

    @property
    def url(self) -> str:
        return self._url("sentinel", self.sentinels, f"/{NAME}")

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
        self.nodes = [self._node() for _ in range(replicas + 1)]
        first = self.nodes[0]
        start_all(self.nodes)
        for node in self.nodes[1:]:
            node.client.replicaof(HOST, str(first.port))
        self.wait_in_sync(replicas, of=first)
        self.sentinels = [self._sentinel(sentinels // 2 + 1) for _ in range(sentinels)]
        start_all(self.sentinels)
        for sentinel in self.sentinels:
            self._shorten_intervals(sentinel)
        self.wait_known()

    def _sentinel(self, quorum: int) -> Node:
        config = (
            f"sentinel monitor {NAME} {HOST} {self.nodes[0].port} {quorum}\n"
            f"sentinel down-after-milliseconds {NAME} {self._down_after_ms}\n"
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}\n"
            f"sentinel parallel-syncs {NAME} 8\n"
        )
        return self._process(["--sentinel", "--bind", HOST, "--daemonize", "no"], config)

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
        client = self.master.client
        client.flushall()
        client.script_flush()


@contextmanager
def sentinel_set(replicas: int = 2, sentinels: int = 3, **options: Any) -> Iterator[SentinelSet]:
    """A running set; `options` are those of `SentinelSet` and `Topology`."""
    with SentinelSet(**options) as servers:
        servers.start(replicas, sentinels)
        yield servers
