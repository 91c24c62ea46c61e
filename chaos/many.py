"""Several Redis servers: a Sentinel set or a Cluster of six nodes, and their faults.

A failover may lose a worker's last writes: only the gateway waits for replicas. Every
acknowledged request must still hold afterwards.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AbstractContextManager

from redis.exceptions import RedisError

from chaos.plan import Fault, FaultKind, On
from sluice.common.contracts.jobs import JobKeys
from sluice.common.jobs.partition_clients import PartitionClients
from sluice.common.redis.partitions import Partitions
from sluice.common.version import reported_version
from tests.support.servers import BUNDLED, REDIS_8, SYSTEM, server_binary
from tests.support.topologies import Node, RedisCluster, SentinelSet, cluster, sentinel_set, until

#: Number of partitions on a Cluster.
PARTITIONS = 4
_CONNECTIONS = 8
#: Replicas of the master that Sentinels watch.
_REPLICAS = 2
#: Time limit for moving a slot while servers may be frozen.
_MOVE_S = 60.0


class ManyServers:
    """All servers of a run; killed ones are restarted."""

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
        self._clients: PartitionClients | None = None
        #: Settings for gateways and workers. A demoted master may keep one of two replicas for a
        #: while, so writes must be confirmed by both.
        self.settings = {
            "QUEUE_PARTITIONS": str(count),
            "WAIT_REPLICAS": "1" if on is On.CLUSTER else str(_REPLICAS),
            "WAIT_TIMEOUT_MS": "500",
        }

    @property
    def servers(self) -> SentinelSet | RedisCluster:
        assert self._servers is not None
        return self._servers

    @property
    def url(self) -> str:
        return self.servers.url

    @property
    def clients(self) -> PartitionClients:
        assert self._clients is not None
        return self._clients

    async def start(self) -> None:
        """Starts all servers and waits until they agree on the topology."""
        self._servers = await asyncio.to_thread(self._context.__enter__)
        self._clients = PartitionClients.connect(
            self._partitions, self.url, connections=_CONNECTIONS
        )

    async def inject(self, fault: Fault) -> str:
        """Applies a fault and waits until the servers have recovered."""
        try:
            await asyncio.to_thread(self._inject, fault)
        except (AssertionError, RedisError, OSError) as error:
            # The servers do not recover: not an error of Sluice.
            raise RuntimeError(f"after {fault}: {error}") from error
        return ""

    def _inject(self, fault: Fault) -> None:
        keys = self._random.choice(self._partitions.keys)
        servers = self.servers
        if isinstance(servers, RedisCluster):
            self._inject_in_cluster(fault, servers, servers.slot_of(keys.queue))
        else:
            self._inject_in_set(fault, servers)

    def _inject_in_set(self, fault: Fault, servers: SentinelSet) -> None:
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

    def _inject_in_cluster(self, fault: Fault, servers: RedisCluster, slot: int) -> None:
        owner = servers.owner(slot)
        if fault.kind is FaultKind.FAIL_OVER:
            servers.failover(slot)
        elif fault.kind is FaultKind.RESHARD:
            others = [node for node in servers.masters if node is not owner]
            target = self._random.choice(others)

            def moved() -> bool:  # an interrupted move can be repeated
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
        """Resumes all servers."""
        if self._servers is not None:
            for node in self._servers.nodes:
                node.resume()

    def end(self) -> None:
        """Kills the servers at the end of the run."""
        if self._servers is not None:
            self._context.__exit__(None, None, None)
            self._servers = None

    async def aclose(self) -> None:
        if self._clients is not None:
            await self._clients.aclose()

    async def version(self) -> str:
        info = await self.clients.home.client.info("server")
        return f"{' '.join(reported_version(info))}, {len(self.servers.nodes)} nodes"


def _kind() -> str:
    """Chooses the server binary: the system's, or one from a package."""
    found = [name for name in (SYSTEM, REDIS_8, BUNDLED) if server_binary(name) is not None]
    if not found:
        raise RuntimeError("no redis-server is installed")
    return found[0]


def _freeze(node: Node, seconds: float) -> None:
    node.pause()
    try:
        time.sleep(seconds)
    finally:
        node.resume()
