"""Connections to a real Sentinel set and a real Cluster locate their server, also if it moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import exceptions

from sluice.common.contracts.jobs import JobKeys
from sluice.common.errors import StoreUnavailable, UnsuitableRedis
from sluice.common.jobs.scripts import CORE_SCRIPT, JobScript
from sluice.common.process import preflight
from sluice.common.redis import locator as module
from sluice.common.redis.addresses import keyslot, url_for_tag
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.connection import TRANSIENT_ERRORS, async_client, sync_client
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.redis.scripts import Record
from tests.support.topologies import (
    LONG_TIMEOUT_MS,
    Node,
    RedisCluster,
    SentinelSet,
    cluster,
    sentinel_set,
)

pytestmark = pytest.mark.slow("needs the system's redis-server: Sentinel and Cluster")

Command = Callable[..., Awaitable[Any]]
#: Seconds that a command is retried after the server has changed.
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def sentinels() -> Iterator[SentinelSet]:
    with sentinel_set(replicas=1, sentinels=2, down_after_ms=LONG_TIMEOUT_MS) as servers:
        yield servers


@pytest.fixture(scope="module")
def nodes() -> Iterator[RedisCluster]:
    with cluster(masters=3, replicas_each=0, node_timeout_ms=LONG_TIMEOUT_MS) as servers:
        yield servers


@asynccontextmanager
async def every_way(url: str) -> AsyncIterator[dict[str, Command]]:
    """The three kinds of connection, each as a function that sends a command."""
    wire, client, blocking = (
        PipelinedConnection(url),
        async_client(url, connections=2),
        sync_client(url),
    )

    async def in_thread(*args: Any) -> Any:
        return await asyncio.to_thread(blocking.execute_command, *args)

    try:
        yield {"wire": wire.execute_command, "client": client.execute_command, "sync": in_thread}
    finally:
        await wire.aclose()
        await client.aclose()
        blocking.close()


async def patiently(command: Command, *args: Any) -> Any:
    """Retry until the command succeeds."""

    async def repeat() -> Any:
        while True:
            try:
                return await command(*args)
            except TRANSIENT_ERRORS:
                await asyncio.sleep(0.02)

    return await asyncio.wait_for(repeat(), TIMEOUT_S)


async def test_every_connection_goes_to_the_master(sentinels: SentinelSet) -> None:
    """Also if the first sentinel is unavailable."""
    async with every_way(sentinels.url.replace("://", "://127.0.0.1:1,")) as ways:
        for way, command in ways.items():
            assert await command("SET", way, "x"), way
            assert sentinels.master.client.get(way) == b"x"


async def test_an_unknown_master_name(sentinels: SentinelSet) -> None:
    async with every_way(sentinels.url.replace("mymaster", "hismaster")) as ways:
        for command in ways.values():
            with pytest.raises(exceptions.ConnectionError, match="knows no master 'hismaster'"):
                await command("PING")


async def test_a_replica_is_not_accepted_as_master(
    sentinels: SentinelSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partitioned sentinel may name the old master, which is a replica by now."""
    [replica] = sentinels.replicas
    answer = [b"127.0.0.1", str(replica.port).encode()]
    read = module._master
    monkeypatch.setattr(module, "_master", lambda reply: read(answer))
    module.locator_for.cache_clear()
    async with every_way(sentinels.url) as ways:
        for command in ways.values():
            with pytest.raises(exceptions.ConnectionError, match="is not the master"):
                await command("PING")
    module.locator_for.cache_clear()


async def test_servers_and_sentinels_may_have_different_users(sentinels: SentinelSet) -> None:
    for node in sentinels.nodes:
        node.run("ACL", "SETUSER", "data", "on", ">data-word", "~*", "&*", "+@all")
    for sentinel in sentinels.sentinels:
        sentinel.run("ACL", "SETUSER", "guard", "on", ">guard-word", "&*", "+@all")
    url = sentinels.url.replace("://", "://data:data-word@")
    right = f"{url}?sentinel_username=guard&sentinel_password=guard-word"
    async with every_way(right) as ways:
        for command in ways.values():
            assert b"data" in await command("ACL", "WHOAMI")
    async with every_way(right.replace("guard-word", "wrong")) as ways:
        for command in ways.values():
            with pytest.raises(exceptions.ConnectionError) as caught:
                await command("PING")
            assert "wrong" not in str(caught.value)
    with pytest.raises(UnsuitableRedis, match="rejects the login"):
        preflight.check_redis(right.replace("guard-word", "wrong"))
    with pytest.raises(UnsuitableRedis, match="rejects the login"):
        preflight.check_redis(right.replace("data-word", "wrong"))


async def test_connections_follow_a_demoted_master(sentinels: SentinelSet) -> None:
    async with every_way(sentinels.url) as ways:
        for command in ways.values():
            await command("PING")
        master = await asyncio.to_thread(sentinels.failover)
        for way, command in ways.items():
            await asyncio.wait_for(_arrived(master, command, f"new-{way}"), TIMEOUT_S)


async def _arrived(master: Node, command: Command, key: str) -> None:
    while master.client.get(key) is None:  # the old master accepts writes until it is demoted
        await patiently(command, "SET", key, "x")
        await asyncio.sleep(0.02)


def test_problems_of_a_sentinel_set_are_reported(sentinels: SentinelSet) -> None:
    texts = [text for _, text in preflight._findings(sentinels.url)]
    assert [text for text in texts if "appendonly yes" in text] == texts


async def test_every_connection_goes_to_the_owner_of_its_tag(nodes: RedisCluster) -> None:
    """Any one node is enough to find the others."""
    for number in range(8):
        tag, known = f"{{{number}}}:", nodes.nodes[number % 3].address
        url = f"redis+cluster://127.0.0.1:1,{known}"
        async with every_way(url_for_tag(url, tag)) as ways:
            for way, command in ways.items():
                assert await command("SET", f"{tag}{way}", "x")
        assert nodes.owner(keyslot(tag)).client.get(f"{tag}wire") == b"x"


async def test_connections_follow_a_slot_that_moves(nodes: RedisCluster) -> None:
    key = "{moving}:key"
    slot = keyslot(key)
    async with every_way(url_for_tag(nodes.url, "{moving}:")) as ways:
        for command in ways.values():
            await command("SET", key, "x")
        target = next(node for node in nodes.masters if node is not nodes.owner(slot))
        await asyncio.to_thread(nodes.move_slot, slot, target)
        for way, command in ways.items():
            with pytest.raises(exceptions.MovedError):
                await command("SET", key, way)
            assert await command("SET", key, way)
            assert target.client.get(key) == way.encode()


def test_every_node_of_a_cluster_is_checked(nodes: RedisCluster) -> None:
    nodes.nodes[1].client.config_set("maxmemory", "100mb")
    nodes.nodes[1].client.config_set("maxmemory-policy", "allkeys-lru")
    found = preflight._findings(nodes.url)
    [(level, text)] = [each for each in found if "allkeys-lru" in each.text]
    assert level == logging.ERROR
    assert nodes.nodes[1].address in text
    assert len([text for _, text in found if "no replica" in text]) == 3


def test_a_cluster_node_is_not_a_single_server(nodes: RedisCluster) -> None:
    found = preflight._findings(f"redis://{nodes.nodes[0].address}")
    assert any("redis+cluster://" in text for level, text in found if level == logging.ERROR)


async def test_a_single_server_is_not_a_cluster_node(sentinels: SentinelSet) -> None:
    async with every_way(f"redis+cluster://{sentinels.master.address}") as ways:
        for command in ways.values():
            with pytest.raises(exceptions.ConnectionError, match="cluster support disabled"):
                await command("PING")


# -- A script on a slot that is moving runs completely, or not at all and is repeated -------------


KEYS = JobKeys().partition(3)
#: Like workflow scripts: writes, and then reads a key that the call did not name.
SOURCE = (
    "redis.call('HINCRBY', KEYS[1], 'n', 1) redis.call('GET', KEYS[2] .. ':made') return {{'ok'}}"
)
SCRIPT = JobScript(lambda: SOURCE)
RECORD = Record("any", (), ())


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
