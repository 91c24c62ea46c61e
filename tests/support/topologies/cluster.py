"""A Redis Cluster with short timeouts; slots can be moved, nodes killed and added."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from tests.support.ports import HOST
from tests.support.topologies.node import Node, Topology, start_all
from tests.support.waiting import until

SLOTS = 16_384
SETTLE_S = 120.0
#: A node that does not respond for this long is considered failed, unless a test changes it.
NODE_TIMEOUT_MS = 1500
#: Keys per MIGRATE.
BATCH = 50
_MIGRATE_TIMEOUT_MS = 5000
#: A replica abandons a requested failover after five seconds without reporting it.
_RETRY_AFTER_S = 6.0


@dataclass(frozen=True)
class NodeInfo:
    """One node as described by another node."""

    id: str
    port: int
    #: Without `myself`.
    flags: frozenset[str]
    master_id: str
    slots: tuple[str, ...]

    @property
    def failed(self) -> bool:
        return bool(self.flags & {"fail", "fail?", "noaddr", "handshake"})

    def owns(self, slot: int) -> bool:
        for first, _, last in (fields.partition("-") for fields in self.slots):
            if int(first) <= slot <= int(last or first):
                return True
        return False


class RedisCluster(Topology):
    """The nodes in the order they were added: masters first, then their replicas."""

    def __init__(self, node_timeout_ms: int = NODE_TIMEOUT_MS, **options: Any) -> None:
        super().__init__(**options)
        self._node_timeout_ms = node_timeout_ms
        self.nodes: list[Node] = []

    @property
    def url(self) -> str:
        """Addresses of the first nodes, which may be dead when a client connects."""
        return self._url("cluster", self.nodes[:6])

    @property
    def live(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    @property
    def masters(self) -> list[Node]:
        """Nodes with slots, according to the live nodes."""
        ports = {seat.port for seat in self._node_infos() if seat.slots and not seat.failed}
        return [node for node in self.nodes if node.port in ports]

    def start(self, masters: int, replicas_each: int) -> None:
        self.nodes = [self._cluster_node() for _ in range(masters * (1 + replicas_each))]
        start_all(self.nodes)
        for number, node in enumerate(self.nodes, 1):
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number)
        for number, node in enumerate(self.nodes[:masters]):
            self._add_slots(node, number * SLOTS // masters, (number + 1) * SLOTS // masters)
        for number, node in enumerate(self.nodes):
            for other in self.nodes[number + 1 :]:
                node.run("CLUSTER", "MEET", HOST, other.port)
        for number, node in enumerate(self.nodes[masters:]):
            self.replicate(node, self.nodes[number % masters])
        self.wait_agreed()

    def _cluster_node(self) -> Node:
        return self._node(
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(self._node_timeout_ms)),
            *("--cluster-replica-validity-factor", "0", "--cluster-migration-barrier", "99"),
            *(() if self._certificates is None else ("--tls-cluster", "yes")),
        )

    def _add_slots(self, node: Node, first: int, end: int) -> None:
        try:
            node.run("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        except redis.ResponseError:  # before 7.0
            node.run("CLUSTER", "ADDSLOTS", *range(first, end))

    def replicate(self, replica: Node, master: Node) -> None:
        """Makes a node without slots a replica as soon as it knows the master."""
        master_id = self.id_of(master)

        def accepted() -> bool:
            return bool(replica.run("CLUSTER", "REPLICATE", master_id))

        until(accepted, SETTLE_S, f"{replica} replicates {master}")

    # -- queries -------------------------------------------------------------------------------

    def id_of(self, node: Node) -> str:
        return str(node.run("CLUSTER", "MYID").decode())

    def slot_of(self, key: str) -> int:
        return int(key_slot(key.encode()))

    def owner(self, slot: int) -> Node:
        """The owner of a slot, as soon as all live nodes agree on it."""

        def agreed() -> Node | None:
            ports = {self._owner_by(node, slot) for node in self.live}
            found = [node for node in self.live if {node.port} == ports]
            return found[0] if found else None

        return until(agreed, SETTLE_S, f"nodes agree on slot {slot}")

    def _owner_by(self, node: Node, slot: int) -> int:
        seats = _read_node_infos(node)
        return next((seat.port for seat in seats if not seat.failed and seat.owns(slot)), 0)

    def replicas_of(self, master: Node) -> list[Node]:
        master_id = self.id_of(master)
        ports = {seat.port for seat in _read_node_infos(master) if seat.master_id == master_id}
        return [node for node in self.live if node.port in ports]

    def _node_infos(self) -> tuple[NodeInfo, ...]:
        for node in self.live:
            try:
                return _read_node_infos(node)
            except (redis.RedisError, OSError):
                continue  # the node is frozen
        raise AssertionError("no node of the cluster answers")

    # -- waiting ---------------------------------------------------------------------------

    def wait_agreed(self) -> None:
        """Waits until all live nodes agree on the slots, all slots are served, and each replica is
        in sync.
        """
        until(self._agreed, SETTLE_S, "the cluster agrees")

    def _agreed(self) -> bool:
        ports = {node.port for node in self.live}
        views = set()
        for node in self.live:
            seats = _read_node_infos(node)
            views.add(frozenset(seat for seat in seats if seat.port in ports))
            if b"cluster_state:ok" not in node.run("CLUSTER", "INFO"):
                return False
            role = node.run("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        seen = next(iter(views))
        return len(views) == 1 and len(seen) == len(ports) and not any(s.failed for s in seen)

    def wait_failover(self, dead: Node, slot: int) -> Node:
        """Waits until another node owns the slot of a dead one, and the cluster is healthy."""

        def taken_over() -> Node | None:
            owner = self.owner(slot)
            return owner if owner is not dead else None

        new = until(taken_over, SETTLE_S, f"a takeover from {dead}")
        self.wait_agreed()
        return new

    # -- actions -------------------------------------------------------------------------------

    def failover(self, slot: int) -> Node:
        """Makes a replica take over from the owner of a slot, as an operator would."""
        old = self.owner(slot)
        ask_at = time.monotonic()

        def taken_over() -> Node | None:
            nonlocal ask_at
            owner = self.owner(slot)
            if owner is not old:
                return owner
            if time.monotonic() >= ask_at:
                self.replicas_of(old)[0].run("CLUSTER", "FAILOVER")
                ask_at = time.monotonic() + _RETRY_AFTER_S
            return None

        new = until(taken_over, SETTLE_S, f"a replica takes over from {old}")
        self.wait_agreed()
        return new

    def move_slot(self, slot: int, target: Node) -> int:
        """Moves a slot with its keys, as resharding tools do; returns the number of keys."""
        source = self.owner(slot)
        if source is target:
            return 0
        source_id, target_id = self.id_of(source), self.id_of(target)
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        moved = 0
        while keys := source.run("CLUSTER", "GETKEYSINSLOT", slot, BATCH):
            source.run(
                *("MIGRATE", HOST, target.port, "", 0, _MIGRATE_TIMEOUT_MS),
                # An attempt whose reply was lost may have left copies there.
                *("REPLACE", "KEYS", *keys),
            )
            moved += len(keys)
        # The target first: otherwise the source would redirect clients to a node that does not know
        # that it owns the slot.
        masters = (node for node in self.masters if node not in (source, target))
        target.run("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        for node in (source, *masters):
            try:
                node.run("CLUSTER", "SETSLOT", slot, "NODE", target_id)
            except redis.ResponseError:
                # It may already know: a master that gave its last slot away becomes a replica.
                if node.role == "master":
                    raise
        return moved

    def add_node(self, replica_of: Node | None = None) -> Node:
        """Starts another node without slots, or as a replica."""
        node = self._cluster_node()
        known = self.live
        self.nodes.append(node)
        node.start()
        for other in known:
            node.run("CLUSTER", "MEET", HOST, other.port)
        if replica_of is not None:
            self.replicate(node, replica_of)
        self.wait_agreed()
        return node

    def flush(self) -> None:
        for node in self.masters:
            node.client.flushall()
            node.client.script_flush()


def _read_node_infos(node: Node) -> tuple[NodeInfo, ...]:
    lines = node.run("CLUSTER", "NODES").decode()
    return tuple(_parse_node_info(line.split()) for line in lines.splitlines())


def _parse_node_info(fields: list[str]) -> NodeInfo:
    flags = frozenset(fields[2].split(",")) - {"myself"}
    port = int(fields[1].partition("@")[0].rpartition(":")[2])
    # Migrating slots are in brackets, and only on their source and target.
    slots = tuple(word for word in fields[8:] if not word.startswith("["))
    return NodeInfo(fields[0], port, flags, fields[3], slots)


@contextmanager
def cluster(masters: int = 3, replicas_each: int = 1, **options: Any) -> Iterator[RedisCluster]:
    """A running Cluster; `options` are those of `RedisCluster` and `Topology`."""
    with RedisCluster(**options) as servers:
        servers.start(masters, replicas_each)
        yield servers
