"""Checks of a queue with several partitions and their servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from common.observability.heartbeats import Heartbeat
from common.settings.worker import WorkerSettings
from ops.doctor.checks import queue, redis
from ops.doctor.finding import CheckSkipped, Health
from ops.doctor.machine import Machine
from ops.doctor.redis_server import PartitionServer, RedisServer
from ops.redis_target import RedisTarget
from tests.ops.doctor.machines import finding_of, findings_of, real_machine, status_of
from tests.support.servers import REAL, SYSTEM, RealServer, require_binary

PARTITIONS = 4
GROUP = "workers"
SETTINGS = WorkerSettings(queue_partitions=PARTITIONS)
KEYS = SETTINGS.partitions.keys


@pytest.fixture(params=REAL)
def server(request: Any, real_server: Any) -> RealServer:
    server: RealServer = real_server(request.param)
    server.client.flushall()
    return server


def fresh(server: RealServer) -> Machine:
    return real_machine(server, worker_settings=SETTINGS)


def enqueue(server: RealServer, partition: int, age_s: float = 0.0) -> None:
    client: Any = server.client
    entry_id = f"{int((time.time() - age_s) * 1000)}-1"
    fields = {"job_id": "a", "task": "chat", "payload": "{}"}
    client.xadd(KEYS[partition].queue, fields, id=entry_id)


def make_all_groups(server: RealServer) -> None:
    client: Any = server.client
    for keys in KEYS:
        client.xgroup_create(keys.queue, GROUP, id="0", mkstream=True)


def test_all_partitions_on_one_server(server: RealServer) -> None:
    [found] = findings_of(redis.partitions, fresh(server))
    assert found.status is Health.OK
    assert found.seen.startswith("4 partitions on 1 server: partitions 0, 1, 2, 3 at ")


def test_single_partition_is_skipped(server: RealServer) -> None:
    with pytest.raises(CheckSkipped):
        redis.partitions.run(real_machine(server))


def test_waiting_jobs_are_summed(server: RealServer) -> None:
    make_all_groups(server)
    for partition, age_s in [(0, 5.0), (2, 300.0), (2, 1.0), (3, 2.0)]:
        enqueue(server, partition, age_s)
    beat = Heartbeat(consumer="w", version="0.1.0", max_inflight=4, seen_ms=int(time.time() * 1000))
    client: Any = server.client
    client.set(KEYS[0].worker("w"), beat.to_json(), ex=60)
    client.zadd(KEYS[0].workers, {"w": beat.seen_ms})
    found = finding_of(queue.waiting, fresh(server))
    assert found.status is Health.WARN
    assert found.seen.startswith("4 waiting, the oldest for 5 min")
    assert finding_of(queue.backlog, fresh(server)).seen == "4 of 200"
    assert status_of(queue.workers, fresh(server)) is Health.OK


def test_partition_without_a_group(server: RealServer) -> None:
    make_all_groups(server)
    client: Any = server.client
    assert status_of(queue.group, fresh(server)) is Health.OK
    enqueue(server, 3)
    client.xgroup_destroy(KEYS[3].queue, GROUP)
    assert status_of(queue.group, fresh(server)) is Health.FAIL


def test_expired_lease_in_one_partition(server: RealServer) -> None:
    make_all_groups(server)
    client: Any = server.client
    enqueue(server, 1)
    for partition in range(PARTITIONS):
        client.xgroup_createconsumer(KEYS[partition].queue, GROUP, "w1")
    [[_, [[entry_id, _]]]] = client.xreadgroup(GROUP, "w1", {KEYS[1].queue: ">"}, count=1)
    client.xclaim(KEYS[1].queue, GROUP, "w1", 0, [entry_id], idle=10_000_000)
    found = finding_of(queue.pending, fresh(server))
    assert found.status is Health.FAIL
    assert found.seen.startswith("1 in progress")


def test_wrong_key_type_in_one_partition(server: RealServer) -> None:
    make_all_groups(server)
    assert status_of(queue.key_types, fresh(server)) is Health.OK
    client: Any = server.client
    client.set(KEYS[2].index, "x")
    found = finding_of(queue.key_types, fresh(server))
    assert found.status is Health.FAIL
    assert "{2}:jobs:stream:index is a string, not a zset" in found.seen


def test_scheduled_jobs_and_dead_letters_are_summed(server: RealServer) -> None:
    make_all_groups(server)
    client: Any = server.client
    now_ms = time.time() * 1000
    client.zadd(KEYS[1].scheduled, {"a": now_ms + 60_000})
    client.zadd(KEYS[3].scheduled, {"b": now_ms + 60_000})
    assert finding_of(queue.scheduled, fresh(server)).seen == "2 scheduled jobs"
    client.zadd(KEYS[3].scheduled, {"c": now_ms - 600_000})
    found = finding_of(queue.scheduled, fresh(server))
    assert (found.status, found.seen[:13]) == (Health.FAIL, "1 job overdue")
    assert status_of(queue.dead_letters, fresh(server)) is Health.OK
    client.xadd(KEYS[1].dead_letters, {"reason": "newer"}, id="1760000000001-0")
    client.xadd(KEYS[2].dead_letters, {"reason": "older"}, id="1760000000000-9")
    found = finding_of(queue.dead_letters, fresh(server))
    assert found.seen == "2 dead letters; the last: newer"


@pytest.fixture
def other() -> Iterator[RealServer]:
    """A server that the test may stop."""
    server = RealServer(require_binary(SYSTEM))
    yield server
    server.close()


def test_unreachable_server_is_reported(server: RealServer, other: RealServer) -> None:
    machine = fresh(server)
    other_server = RedisServer(RedisTarget(other.url, "--redis"))
    machine.partitions = (*machine.partitions[:3], PartitionServer(3, KEYS[3], other_server))
    [found] = findings_of(redis.partitions, machine)  # test servers have no append-only file
    assert (found.status, "partition 3 at " in found.seen) == (Health.WARN, True)
    assert "append-only" in found.seen
    other.process.kill()
    other.process.wait()
    machine = fresh(server)
    machine.partitions = (
        *machine.partitions[:3],
        PartitionServer(3, KEYS[3], RedisServer(RedisTarget(other.url, "--redis"))),
    )
    [found] = findings_of(redis.partitions, machine)
    assert found.status is Health.FAIL
    assert found.seen.startswith("partition 3 at ")
    with pytest.raises(CheckSkipped, match=r"partition 3 .* redis\.partitions"):
        queue.waiting.run(machine)


def test_lanes_belong_to_the_queue(server: RealServer) -> None:
    settings = WorkerSettings(lanes="high,low")
    keys, client = settings.keys, server.client
    client.xgroup_create(keys.queue, GROUP, id="0", mkstream=True)
    group = finding_of(queue.group, real_machine(server, worker_settings=settings))
    assert group.status is Health.OK, "the lanes have no jobs yet"
    high = keys.for_lane("high").stream
    client.xadd(high, {"job_id": "a", "task": "chat", "payload": "{}"})
    found = finding_of(queue.backlog, real_machine(server, worker_settings=settings))
    assert found.seen == "1 of 200"
    group = finding_of(queue.group, real_machine(server, worker_settings=settings))
    assert group.status is Health.FAIL, "no worker reads the lane"
    client.delete(high)
    client.set(high, "x")
    kinds = finding_of(queue.key_types, real_machine(server, worker_settings=settings))
    assert (kinds.status, high in kinds.seen) == (Health.FAIL, True)
