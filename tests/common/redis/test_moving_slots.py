"""A script on a slot that a Cluster is moving runs completely, or not at all and is repeated."""

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
from tests.support.topologies import LONG_TIMEOUT_MS, RedisCluster, cluster

pytestmark = pytest.mark.slow("needs the system's redis-server: a Cluster")

KEYS = JobKeys().partition(3)
#: Like workflow scripts: writes, and then reads a key that the call did not name.
SOURCE = (
    "redis.call('HINCRBY', KEYS[1], 'n', 1) redis.call('GET', KEYS[2] .. ':made') return {{'ok'}}"
)
SCRIPT = JobScript(lambda: SOURCE)
RECORD = Record("any", (), ())


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with cluster(masters=3, replicas_each=0, node_timeout_ms=LONG_TIMEOUT_MS) as servers:
        yield servers


async def test_a_script_with_derived_keys_is_refused_before_it_writes(nodes: RedisCluster) -> None:
    slot = nodes.slot_of(KEYS.queue)
    source = nodes.owner(slot)
    target = next(node for node in nodes.masters if node is not source)
    every = (KEYS.counts, KEYS.stream, KEYS.dead_letters, KEYS.index)
    for name in every:  # so that Redis misses none of the keys that the call names
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


def test_key_names_of_a_single_partition_are_unchanged() -> None:
    count, *rest = CORE_SCRIPT.pack(JobKeys(), [RECORD])
    assert (count, JobKeys().probe in rest) == (4, False)
