"""Changes of a Cluster under load: masters die, slots move, nodes are added. No acknowledged job is
lost, and none ends twice.
"""

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

#: Duration of the load before and after a change.
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
    async with made.connected():
        yield made
    made.end()


async def under_load(rig: ClusterRig, name: str, change: Callable[[], object]) -> float:
    """Applies a change under load; returns the seconds until every partition has accepted a job
    sent after it began.
    """
    load = Load(rig, name)
    running = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(LOAD_S)
        began = time.monotonic()
        await asyncio.to_thread(change)
        took = await load.recovered(began)
        await asyncio.sleep(LOAD_S)
    finally:
        load.over = True
        await running
    await rig.check_history(list(load.acknowledged.values()))
    return took


async def test_a_killed_master_loses_no_acknowledged_job(rig: ClusterRig) -> None:
    rig.worker("one")
    rig.worker("two")
    killed = rig.owner(1)

    def kill() -> None:
        killed.kill()
        rig.servers.wait_failover(killed, rig.slot(1))
        killed.restart()  # nothing is guaranteed until the new master has a replica

    print(f"every partition accepts {await under_load(rig, 'kill', kill):.1f} s after the kill")
    rig.servers.wait_agreed()
    # The restarted node gets its slots back with a planned failover.
    await under_load(rig, "over", lambda: rig.servers.failover(rig.slot(1)))


async def test_moving_slots_loses_no_acknowledged_job(rig: ClusterRig) -> None:
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
