"""More than one Redis: a Sentinel set or a Cluster of six nodes, and what may happen to them.

A failover may lose what a worker wrote last: no change waits for replicas but a gateway's. What
was promised to clients must survive all the same.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AbstractContextManager

from redis.exceptions import RedisError

from chaos.plan import Fault, FaultKind, On
from common.contracts.jobs import JobKeys
from common.jobs.partition_clients import PartitionClients
from common.redis.partitions import Partitions
from tests.support.backends import BUNDLED, EIGHT, SYSTEM, server_binary
from tests.topologies import Node, RedisCluster, SentinelSet, cluster, sentinel_set, until

#: Of a Cluster's queue.
PARTITIONS = 4
_CONNECTIONS = 8
#: Of the master that Sentinels watch.
_REPLICAS = 2
#: How long a slot may take to move, with servers that stand still now and then.
_MOVE_S = 60.0


class ManyServers:
    """All servers of a run; whoever dies is started again."""

    def __init__(self, on: On, seed: int = 0) -> None:
        count = PARTITIONS if on is On.CLUSTER else 1
        self._partitions = Partitions.create(JobKeys(), count)
        self._context: AbstractContextManager[SentinelSet | RedisCluster] = (
            cluster(kind=_kind())
            if on is On.CLUSTER
            else sentinel_set(replicas=_REPLICAS, kind=_kind())
        )
        self._random = random.Random(f"servers {seed}")
        self._servers: SentinelSet | RedisCluster | None = None
        self._lines: PartitionClients | None = None
        #: For gateways and workers. A demoted master may keep one of two replicas for a while, so
        #: that only the word of both is worth something.
        self.settings = {
            "QUEUE_PARTITIONS": str(count),
            "WAIT_REPLICAS": "1" if on is On.CLUSTER else str(_REPLICAS),
            "WAIT_TIMEOUT_MS": "500",
        }

    @property
    def servers(self) -> SentinelSet | RedisCluster:
        """Those that were started."""
        assert self._servers is not None
        return self._servers

    @property
    def url(self) -> str:
        """For gateways and workers."""
        return self.servers.url

    @property
    def lines(self) -> PartitionClients:
        """A way to every partition."""
        assert self._lines is not None
        return self._lines

    async def start(self) -> None:
        """Start all of them, and wait until they agree."""
        self._servers = await asyncio.to_thread(self._context.__enter__)
        self._lines = PartitionClients.connect(self._partitions, self.url, connections=_CONNECTIONS)

    async def strike(self, fault: Fault) -> str:
        """Do to them what a fault says, and wait until they are well again."""
        try:
            await asyncio.to_thread(self._strike, fault)
        except (AssertionError, RedisError, OSError) as error:
            # They do not get over it by themselves: no fault of ours.
            raise RuntimeError(f"after {fault}: {error}") from error
        return ""

    def _strike(self, fault: Fault) -> None:
        keys = self._random.choice(self._partitions.keys)
        servers = self.servers
        if isinstance(servers, RedisCluster):
            self._strike_cluster(fault, servers, servers.slot_of(keys.queue))
        else:
            self._strike_set(fault, servers)

    def _strike_set(self, fault: Fault, servers: SentinelSet) -> None:
        master = servers.master
        if fault.kind is FaultKind.FAIL_OVER:
            servers.failover()
        elif fault.kind is FaultKind.FREEZE_MASTER:
            _freeze(master, fault.seconds)
        else:
            master.kill()
            servers.wait_failover(master)
            master.restart()
        servers.wait_in_sync(_REPLICAS)
        servers.wait_known()

    def _strike_cluster(self, fault: Fault, servers: RedisCluster, slot: int) -> None:
        owner = servers.owner(slot)
        if fault.kind is FaultKind.FAIL_OVER:
            servers.failover(slot)
        elif fault.kind is FaultKind.RESHARD:
            others = [node for node in servers.masters if node is not owner]
            target = self._random.choice(others)

            def moved() -> bool:  # who was told half of it can be told all of it again
                servers.move_slot(slot, target)
                return servers.owner(slot) is target

            until(moved, _MOVE_S, f"slot {slot} moves to {target}")
        elif fault.kind is FaultKind.FREEZE_MASTER:
            _freeze(owner, fault.seconds)
        else:
            owner.kill()
            servers.wait_failover(owner, slot)
            owner.restart()
        servers.wait_agreed()

    def thaw(self) -> None:
        """Let all of them go on."""
        if self._servers is not None:
            for node in self._servers.nodes:
                node.resume()

    def end(self) -> None:
        """End them at once, at the end of the run."""
        if self._servers is not None:
            self._context.__exit__(None, None, None)
            self._servers = None

    async def aclose(self) -> None:
        """Hang up."""
        if self._lines is not None:
            await self._lines.aclose()

    async def version(self) -> str:
        """What they say of themselves."""
        info = await self.lines.home.client.info("server")
        return f"{info['redis_version']}, {len(self.servers.nodes)} nodes"


def _kind() -> str:
    """Which servers: the system's, or those that came with a package."""
    found = [name for name in (SYSTEM, EIGHT, BUNDLED) if server_binary(name) is not None]
    if not found:
        raise RuntimeError("no redis-server is installed")
    return found[0]


def _freeze(node: Node, seconds: float) -> None:
    node.pause()
    try:
        time.sleep(seconds)
    finally:
        node.resume()
