"""Cost of hints on many nodes: a Cluster forwards each published message to all nodes.

Every script call that writes events publishes the job ids, so that gateways know which streams to
read. Measured separately: many messages of that size, and the CPU time of each process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import machine
from bench.pipe import Pipe, pack
from bench.post import free_port, gateway_env, is_listening
from bench.process import program, wait_until
from bench.server import BenchRedis
from sluice.common.contracts.jobs import JobKeys
from tests.support.topologies import Node, cluster

#: Ids per message: as many as a script call has jobs.
IDS = 16
_CHANNEL = JobKeys().hints
_MESSAGE = " ".join(f"00000000-0000-4000-8000-{number:012x}" for number in range(IDS))


@dataclass(frozen=True)
class Hints:
    """Microseconds per message."""

    bus_send_us: float
    bus_hear_us: float
    gateway_us: float


def run(redis: BenchRedis, messages: int) -> Hints:
    """On one server, on three nodes, and with a subscribed gateway."""
    packed = pack([("PUBLISH", _CHANNEL, _MESSAGE)]) * messages
    redis.clear()
    alone_s = _cpu_spent(lambda: redis.pipe.push(packed), redis.process.pid)[0]
    with cluster(3, 0) as nodes:
        sender, *others = nodes.nodes
        pipe = Pipe(("127.0.0.1", sender.port))
        pids = [node.pid for node in nodes.nodes]
        before = [_received(node) for node in others]
        sender_s, *receiver_s = _cpu_spent(
            lambda: _push_and_wait(pipe, packed, others, before, messages), *pids
        )
        pipe.close()
    gateway_s = _gateway(redis, packed)
    return Hints(
        bus_send_us=max(sender_s - alone_s, 0.0) / len(others) / messages * 1e6,
        bus_hear_us=sum(receiver_s) / len(others) / messages * 1e6,
        gateway_us=gateway_s / messages * 1e6,
    )


def _push_and_wait(
    pipe: Pipe, packed: bytes, others: list[Node], before: list[int], messages: int
) -> None:
    pipe.push(packed)
    wait_until(
        "all nodes to receive the messages",
        lambda: all(_received(node) - count >= messages for node, count in zip(others, before)),
        every_s=0.05,
    )


def _received(node: Node) -> int:
    info: bytes = node.run("CLUSTER", "INFO")
    counts = dict(line.split(":", 1) for line in info.decode().split())
    return int(counts.get("cluster_stats_messages_publish_received", 0))


def _gateway(redis: BenchRedis, packed: bytes) -> float:
    redis.clear()
    port = free_port()
    with program("sluice.gateway", env=gateway_env(redis, port)) as gateway:
        wait_until("the gateway", lambda: is_listening(port), while_alive=gateway)
        wait_until(
            "the gateway to subscribe", lambda: bool(redis.pipe.one("PUBLISH", _CHANNEL, _MESSAGE))
        )

        def publish() -> None:
            redis.pipe.push(packed)
            wait_until("the gateway to read all messages", lambda: _is_all_read(redis))

        return _cpu_spent(publish, gateway.pid)[0]


def _is_all_read(redis: BenchRedis) -> bool:
    """True if no client has unread data."""
    return all(" oll=0 omem=0 " in line and " obl=0 " in line for line in redis.clients())


def _cpu_spent(work: Callable[[], None], *pids: int) -> list[float]:
    """CPU seconds of each process during `work`."""
    before = [machine.cpu_seconds(pid) for pid in pids]
    work()
    return [machine.cpu_seconds(pid) - count for pid, count in zip(pids, before)]
