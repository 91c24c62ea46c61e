"""A Redis Cluster with short timings; slots can be moved, nodes killed and added."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.crc import key_slot

from tests.support.backends import SYSTEM, require_binary
from tests.support.ports import HOST
from tests.topologies.node import Node, common_words, pick_port
from tests.topologies.waiting import until

SLOTS = 16_384
SETTLE_S = 120.0
#: After how long a node that stands still counts as dead, unless a test says otherwise.
NODE_TIMEOUT_MS = 1500
#: How many keys one MIGRATE takes along.
BATCH = 50
_MIGRATE_TIMEOUT_MS = 5000
#: A replica that was told to take over gives up after five seconds, and tells nobody.
_ASK_AGAIN_S = 6.0


@dataclass(frozen=True)
class Seat:
    """What a node says of a node."""

    id: str
    port: int
    #: `myself` left out.
    flags: frozenset[str]
    master_id: str
    slots: tuple[str, ...]

    @property
    def is_master(self) -> bool:
        return "master" in self.flags

    @property
    def failed(self) -> bool:
        return bool(self.flags & {"fail", "fail?", "noaddr", "handshake"})

    def owns(self, slot: int) -> bool:
        for first, _, last in (words.partition("-") for words in self.slots):
            if int(first) <= slot <= int(last or first):
                return True
        return False


class RedisCluster:
    """The nodes, in the order they were added: masters first, then their replicas."""

    def __init__(
        self, directory: Path, binary: str, *, durable: bool, node_timeout_ms: int
    ) -> None:
        self._dir = directory
        self._binary = binary
        self._durable = durable
        self._node_timeout_ms = node_timeout_ms
        self.nodes: list[Node] = []

    @property
    def url(self) -> str:
        """By way of the first nodes, which may be dead by the time somebody asks them."""
        return "redis+cluster://" + ",".join(node.address for node in self.nodes[:6])

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    @property
    def masters(self) -> list[Node]:
        """Nodes with slots, as the living see it."""
        ports = {seat.port for seat in self._seats() if seat.slots and not seat.failed}
        return [node for node in self.nodes if node.port in ports]

    def start(self, masters: int, replicas_each: int) -> None:
        """Start all of it, and wait until everybody agrees."""
        self.nodes = [self._node() for _ in range(masters * (1 + replicas_each))]
        for node in self.nodes:
            node.launch()
        for number, node in enumerate(self.nodes, 1):
            node.wait_ready()
            node.run("CLUSTER", "SET-CONFIG-EPOCH", number)
        for number, node in enumerate(self.nodes[:masters]):
            self._add_slots(node, number * SLOTS // masters, (number + 1) * SLOTS // masters)
        for number, node in enumerate(self.nodes):
            for other in self.nodes[number + 1 :]:
                node.run("CLUSTER", "MEET", HOST, other.port)
        for number, node in enumerate(self.nodes[masters:]):
            self.replicate(node, self.nodes[number % masters])
        self.wait_agreed()

    def _node(self) -> Node:
        directory = self._dir / f"node-{len(list(self._dir.iterdir()))}"
        directory.mkdir()
        words = [
            *common_words(durable=self._durable),
            *("--cluster-enabled", "yes", "--cluster-node-timeout", str(self._node_timeout_ms)),
            *("--cluster-replica-validity-factor", "0", "--cluster-migration-barrier", "99"),
        ]
        return Node(self._binary, directory, pick_port(), words)

    def _add_slots(self, node: Node, first: int, end: int) -> None:
        try:
            node.run("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        except redis.ResponseError:  # before 7.0
            node.run("CLUSTER", "ADDSLOTS", *range(first, end))

    def replicate(self, replica: Node, master: Node) -> None:
        """Make a node without slots another's replica, as soon as it knows it."""
        master_id = self.id_of(master)

        def told() -> bool:
            return bool(replica.run("CLUSTER", "REPLICATE", master_id))

        until(told, SETTLE_S, f"{replica} replicates {master}")

    # -- asking ----------------------------------------------------------------------------

    def id_of(self, node: Node) -> str:
        """A node's name in the Cluster."""
        return str(node.run("CLUSTER", "MYID").decode())

    def slot_of(self, key: str) -> int:
        """The slot of a key."""
        return int(key_slot(key.encode()))

    def owner(self, slot: int) -> Node:
        """Who has a slot, as soon as all living nodes say the same of it."""

        def agreed() -> Node | None:
            ports = {self._owner_by(node, slot) for node in self.living}
            found = [node for node in self.living if {node.port} == ports]
            return found[0] if found else None

        return until(agreed, SETTLE_S, f"nodes agree on slot {slot}")

    def _owner_by(self, node: Node, slot: int) -> int:
        seats = _read_seats(node)
        return next((seat.port for seat in seats if not seat.failed and seat.owns(slot)), 0)

    def replicas_of(self, master: Node) -> list[Node]:
        """A master's living replicas."""
        master_id = self.id_of(master)
        ports = {seat.port for seat in _read_seats(master) if seat.master_id == master_id}
        return [node for node in self.living if node.port in ports]

    def _seats(self) -> tuple[Seat, ...]:
        for node in self.living:
            try:
                return _read_seats(node)
            except (redis.RedisError, OSError):
                continue  # it is frozen
        raise AssertionError("no node of the cluster answers")

    # -- waiting ---------------------------------------------------------------------------

    def wait_agreed(self) -> None:
        """Wait until all living nodes say the same of the slots, all are served, and each replica
        is in sync."""
        until(self._agreed, SETTLE_S, "the cluster agrees")

    def _agreed(self) -> bool:
        ports = {node.port for node in self.living}
        views = set()
        for node in self.living:
            seats = _read_seats(node)
            views.add(frozenset(seat for seat in seats if seat.port in ports))
            if b"cluster_state:ok" not in node.run("CLUSTER", "INFO"):
                return False
            role = node.run("ROLE")
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        seen = next(iter(views))
        return len(views) == 1 and len(seen) == len(ports) and not any(s.failed for s in seen)

    def wait_failover(self, dead: Node, slot: int) -> Node:
        """Wait until another node has the slot that a dead one had, and the cluster is well."""

        def taken_over() -> Node | None:
            owner = self.owner(slot)
            return owner if owner is not dead else None

        new = until(taken_over, SETTLE_S, f"somebody takes over from {dead}")
        self.wait_agreed()
        return new

    # -- doing -----------------------------------------------------------------------------

    def failover(self, slot: int) -> Node:
        """Have a replica take over from the owner of a slot, as an operator would."""
        old = self.owner(slot)
        ask_at = time.monotonic()

        def taken_over() -> Node | None:
            nonlocal ask_at
            owner = self.owner(slot)
            if owner is not old:
                return owner
            if time.monotonic() >= ask_at:
                self.replicas_of(old)[0].run("CLUSTER", "FAILOVER")
                ask_at = time.monotonic() + _ASK_AGAIN_S
            return None

        new = until(taken_over, SETTLE_S, f"a replica takes over from {old}")
        self.wait_agreed()
        return new

    def move_slot(self, slot: int, target: Node) -> int:
        """Move a slot with its keys as resharding tools do; returns how many keys there were."""
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
                # A try whose answer was lost may have left copies there.
                *("REPLACE", "KEYS", *keys),
            )
            moved += len(keys)
        # The target first: were it last, the source would send clients to one who knows nothing.
        masters = (node for node in self.masters if node not in (source, target))
        target.run("CLUSTER", "SETSLOT", slot, "NODE", target_id)
        for node in (source, *masters):
            try:
                node.run("CLUSTER", "SETSLOT", slot, "NODE", target_id)
            except redis.ResponseError:
                # It has heard of it, and who gave its last slot away becomes a replica.
                if node.role == "master":
                    raise
        return moved

    def add_node(self, replica_of: Node | None = None) -> Node:
        """Start another node, without slots: those are moved; or somebody's replica."""
        node = self._node()
        known = self.living
        self.nodes.append(node)
        node.start()
        for other in known:
            node.run("CLUSTER", "MEET", HOST, other.port)
        if replica_of is not None:
            self.replicate(node, replica_of)
        self.wait_agreed()
        return node

    def flush(self) -> None:
        """No key and no script anywhere."""
        for node in self.masters:
            node.client.flushall()
            node.client.script_flush()

    def end(self) -> None:
        """Leave nothing running."""
        for node in self.nodes:
            node.end()


def _read_seats(node: Node) -> tuple[Seat, ...]:
    lines = node.run("CLUSTER", "NODES").decode()
    return tuple(_read_seat(line.split()) for line in lines.splitlines())


def _read_seat(words: list[str]) -> Seat:
    flags = frozenset(words[2].split(",")) - {"myself"}
    port = int(words[1].partition("@")[0].rpartition(":")[2])
    # Slots on their way stand in brackets, and only where they leave or arrive.
    slots = tuple(word for word in words[8:] if not word.startswith("["))
    return Seat(words[0], port, flags, words[3], slots)


@contextmanager
def cluster(
    masters: int = 3,
    replicas_each: int = 1,
    *,
    kind: str = SYSTEM,
    durable: bool = False,
    node_timeout_ms: int = NODE_TIMEOUT_MS,
) -> Iterator[RedisCluster]:
    """A Cluster of servers of one kind; `durable`: a killed node comes back with its data."""
    directory = Path(tempfile.mkdtemp(prefix="sluice-cluster-"))
    binary = require_binary(kind)
    servers = RedisCluster(directory, binary, durable=durable, node_timeout_ms=node_timeout_ms)
    try:
        servers.start(masters, replicas_each)
        yield servers
    finally:
        servers.end()
        shutil.rmtree(directory, ignore_errors=True)
