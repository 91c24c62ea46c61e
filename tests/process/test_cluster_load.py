"""A Cluster changes under load: masters die, slots move, nodes come. Nothing acknowledged is lost,
nothing ends twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.process.cluster_rig import PARTITIONS, ClusterRig, Load
from tests.topologies import RedisCluster, cluster
from tests.worker.processes import Process

pytestmark = [pytest.mark.process, pytest.mark.topology]

#: Before and after what happens.
LOAD_S = 1.0


@pytest.fixture
def servers() -> Iterator[RedisCluster]:
    with cluster() as found:
        yield found


@pytest.fixture
async def rig(
    servers: RedisCluster, spawn: Callable[..., Process], tmp_path: Path
) -> AsyncIterator[ClusterRig]:
    made = ClusterRig(servers, spawn, tmp_path, WAIT_REPLICAS="1", WAIT_TIMEOUT_MS="500")
    async with made.talking():
        yield made
    made.end()


async def under_load(rig: ClusterRig, name: str, change: Callable[[], object]) -> float:
    """Let something happen while jobs flow; returns the seconds from when it began until every
    partition has accepted a job that was sent later."""
    load = Load(rig, name)
    running = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(LOAD_S)
        began = time.monotonic()
        await asyncio.to_thread(change)
        took = await load.well_again(began)
        await asyncio.sleep(LOAD_S)
    finally:
        load.over = True
        await running
    await rig.check_history(list(load.acknowledged.values()))
    return took


async def test_a_master_is_killed(rig: ClusterRig) -> None:
    rig.worker("one")
    rig.worker("two")
    dying = rig.owner(1)

    def kill() -> None:
        dying.kill()
        rig.servers.wait_failover(dying, rig.slot(1))
        dying.restart()  # nothing is promised before the new master has a replica, too

    print(f"every partition accepts {await under_load(rig, 'kill', kill):.1f} s after the kill")
    rig.servers.wait_agreed()
    # And the other way: the one that came back is given its slots, with nobody dying.
    await under_load(rig, "over", lambda: rig.servers.failover(rig.slot(1)))


async def test_slots_move_to_a_node_that_was_added(rig: ClusterRig) -> None:
    rig.worker("one")
    rig.worker("two")
    servers = rig.servers

    def reshard() -> None:
        added = servers.add_node()
        servers.add_node(replica_of=added)
        for number in range(PARTITIONS.count):
            servers.move_slot(rig.slot(number), added)
        assert all(rig.owner(number) is added for number in range(PARTITIONS.count))

    await under_load(rig, "there", reshard)

    def back() -> None:
        for number in range(PARTITIONS.count):
            servers.move_slot(rig.slot(number), servers.nodes[number % 3])

    await under_load(rig, "back", back)
