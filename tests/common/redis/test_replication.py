"""A reply is not delivered before replicas have the change, not even for a repetition."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from redis import exceptions

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.queue import Answer
from sluice.common.errors import NotReplicated, StoreUnavailable
from sluice.common.jobs.scripts import CORE_SCRIPT
from sluice.common.redis.batching import ScriptBatcher
from sluice.common.redis.pipelined import PipelinedConnection
from sluice.common.redis.replication import ReplicatedClient, with_replication
from sluice.common.redis.scripts import Record
from tests.common.redis.test_batching import ByHand
from tests.support.servers import REDIS_8, SYSTEM
from tests.support.topologies import LONG_TIMEOUT_MS, SentinelSet, sentinel_set

KEYS = JobKeys()
TRIM = Record("trim", (KEYS.queue,), ())


@pytest.fixture
def wire() -> ByHand:
    return ByHand()


def sent(wire: ByHand, command: str = "GET") -> list[Any]:
    """Send a command through a client that waits for two replicas; the list gets the reply."""
    replies: list[Any] = []
    ReplicatedClient(wire, KEYS, 2, 500).send((command,), replies.append)
    return replies


def test_marker_and_wait_are_sent_together_with_the_command(wire: ByHand) -> None:
    replies = sent(wire)
    assert [args[0] for args in wire.sent] == ["GET", "SET", "WAIT"]
    assert wire.sent[1][1] == KEYS.replication_marker
    assert wire.sent[2] == ("WAIT", 2, 500)
    wire.reply(b"value", b"OK")
    assert replies == []
    wire.reply(2)
    assert replies == [b"value"]


def test_too_few_replicas_are_an_error(wire: ByHand) -> None:
    replies = sent(wire)
    wire.reply(b"value", b"OK", 1)
    [error] = replies
    assert isinstance(error, NotReplicated)
    assert "1 of 2" in str(error)


@pytest.mark.parametrize("place", range(3))
def test_an_error_of_any_command_is_delivered_once(wire: ByHand, place: int) -> None:
    replies = sent(wire)
    trouble = exceptions.ResponseError("OOM")
    answers: list[Any] = [b"value", b"OK", 2]
    answers[place] = trouble
    wire.reply(*answers)
    assert replies == [trouble]


async def test_a_disconnected_client_connects_first(wire: ByHand) -> None:
    wire.ready = False
    with pytest.raises(exceptions.ConnectionError):  # lost again
        await ReplicatedClient(wire, KEYS, 1, 500).execute_command("GET")
    assert wire.sent == [("PING",)]


def test_without_replicas_the_client_is_not_wrapped(wire: ByHand) -> None:
    assert with_replication(wire, KEYS, 0, 500) is wire


async def test_callers_of_a_batcher_get_the_error_and_may_retry(wire: ByHand) -> None:
    batcher = ScriptBatcher(ReplicatedClient(wire, KEYS, 1, 500), KEYS, CORE_SCRIPT, 5.0)
    first = batcher.submit([TRIM])
    await asyncio.sleep(0)
    wire.reply([[Answer.OK.value.encode()]], b"OK", 0)
    with pytest.raises(NotReplicated):
        await first
    second = batcher.submit([TRIM])
    await asyncio.sleep(0)
    wire.reply([[Answer.OK.value.encode(), 7]], b"OK", 1)
    assert [(reply.answer, reply.value) for reply in await second] == [(Answer.OK, 7)]  # type: ignore[union-attr]
    await batcher.close()


# -- with a real master and a real replica -----------------------------------------------------


@pytest.fixture(scope="module", params=[SYSTEM, REDIS_8])
def servers(request: pytest.FixtureRequest) -> Iterator[SentinelSet]:
    kind, down_after_ms = request.param, LONG_TIMEOUT_MS
    with sentinel_set(1, 1, kind=kind, down_after_ms=down_after_ms) as found:
        yield found


async def test_writes_of_other_connections_are_waited_for_too(servers: SentinelSet) -> None:
    """A repetition only reads, and WAIT covers only writes of the same connection."""
    keys = JobKeys(queue=f"q-{os.urandom(4).hex()}")
    [replica] = servers.replicas
    other, asking = PipelinedConnection(servers.url), PipelinedConnection(servers.url)
    patient = ReplicatedClient(asking, keys, 1, 10_000)
    hasty = ReplicatedClient(asking, keys, 1, 50)
    try:
        assert await patient.execute_command("GET", keys.probe) is None
        replica.pause()
        assert await other.execute_command("SET", keys.probe, "1") == b"OK"
        with pytest.raises(NotReplicated):
            await hasty.execute_command("GET", keys.probe)
        replica.resume()
        assert await patient.execute_command("GET", keys.probe) == b"1"
    finally:
        replica.resume()
        await other.aclose()
        await asking.aclose()


async def test_a_batch_succeeds_once_the_replica_is_back(servers: SentinelSet) -> None:
    [replica] = servers.replicas
    wire = PipelinedConnection(servers.url)
    batcher = ScriptBatcher(ReplicatedClient(wire, KEYS, 1, 300), KEYS, CORE_SCRIPT, 5.0)
    try:
        replica.pause()
        with pytest.raises(StoreUnavailable):
            await batcher.call(TRIM)
        replica.resume()
        for _ in range(50):
            try:
                await batcher.call(TRIM)
                return
            except NotReplicated:
                continue
        pytest.fail("the replica never caught up")
    finally:
        replica.resume()
        await batcher.close()
        await wire.aclose()
