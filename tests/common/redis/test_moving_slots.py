"""A script on a slot that a Cluster is moving is done whole, or not at all and repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from common.contracts.jobs import JobKeys
from common.errors import StoreUnavailable
from common.jobs.scripts import CORE_SCRIPT, JobScript
from common.redis.addresses import url_for_tag
from common.redis.batching import ScriptBatcher
from common.redis.pipelined import PipelinedConnection
from common.redis.scripts import Record
from tests.topologies import LONG_TIMEOUT_MS, RedisCluster, cluster

pytestmark = pytest.mark.redis
KEYS = JobKeys().partition(3)
#: As scripts of workflows do: writes, and then looks for a key that the call did not name.
SOURCE = (
    "redis.call('HINCRBY', KEYS[1], 'n', 1) redis.call('GET', KEYS[2] .. ':made') return {{'ok'}}"
)
SCRIPT = JobScript(lambda: SOURCE)
RECORD = Record("any", (), ())


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with cluster(masters=3, replicas_each=0, node_timeout_ms=LONG_TIMEOUT_MS) as servers:
        yield servers


async def test_a_script_that_makes_names_is_refused_before_it_writes(nodes: RedisCluster) -> None:
    slot = nodes.slot_of(KEYS.queue)
    source = nodes.owner(slot)
    target = next(node for node in nodes.masters if node is not source)
    every = (KEYS.counts, KEYS.stream, KEYS.dead_letters, KEYS.index)
    for name in every:  # then Redis misses none of those that every call names
        source.client.hset(name, "n", "0")
    wire = PipelinedConnection(url_for_tag(nodes.url, KEYS.tag))
    hasty = ScriptBatcher(wire, KEYS, SCRIPT, retry_for_s=0.3)
    patient = ScriptBatcher(wire, KEYS, SCRIPT)
    try:
        await patient.call(RECORD)  # connected, script loaded
        target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", nodes.id_of(source))
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", nodes.id_of(target))
        with pytest.raises(StoreUnavailable):
            await hasty.call(RECORD)
        assert source.client.hget(KEYS.counts, "n") == b"1"
        waiting = patient.submit((RECORD,))
        await asyncio.to_thread(nodes.move_slot, slot, target)
        await waiting
        assert target.client.hget(KEYS.counts, "n") == b"2"
    finally:
        await hasty.close()
        await patient.close()
        await wire.aclose()


def test_names_of_a_single_partition_are_as_they_were() -> None:
    count, *rest = CORE_SCRIPT.pack(JobKeys(), [RECORD])
    assert (count, JobKeys().probe in rest) == (4, False)
