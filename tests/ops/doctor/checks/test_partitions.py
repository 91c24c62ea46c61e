"""A queue in several partitions: the doctor looks at all of them, and at each one's server."""

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
from tests.ops.doctor.machines import finding_of, findings_of, real_machine
from tests.support.backends import REAL, SYSTEM, RealServer, require_binary

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


def queued(server: RealServer, partition: int, age_s: float = 0.0) -> None:
    client: Any = server.client
    entry_id = f"{int((time.time() - age_s) * 1000)}-1"
    fields = {"job_id": "a", "task": "chat", "payload": "{}"}
    client.xadd(KEYS[partition].queue, fields, id=entry_id)


def all_groups(server: RealServer) -> None:
    client: Any = server.client
    for keys in KEYS:
        client.xgroup_create(keys.queue, GROUP, id="0", mkstream=True)


def test_they_are_all_on_one_server(server: RealServer) -> None:
    [found] = findings_of(redis.partitions, fresh(server))
    assert found.status is Health.OK
    assert found.seen.startswith("4 partitions on 1 server: partitions 0, 1, 2, 3 at ")


def test_one_partition_is_nothing_to_look_at(server: RealServer) -> None:
    with pytest.raises(CheckSkipped):
        redis.partitions.run(real_machine(server))


def test_what_waits_is_summed(server: RealServer) -> None:
    all_groups(server)
    for partition, age_s in [(0, 5.0), (2, 300.0), (2, 1.0), (3, 2.0)]:
        queued(server, partition, age_s)
    beat = Heartbeat(consumer="w", version="0.1.0", max_inflight=4, seen_ms=int(time.time() * 1000))
    client: Any = server.client
    client.set(KEYS[0].worker("w"), beat.to_json(), ex=60)
    client.zadd(KEYS[0].workers, {"w": beat.seen_ms})
    found = finding_of(queue.waiting, fresh(server))
    assert found.status is Health.WARN
    assert found.seen.startswith("4 waiting, the oldest for 5 min")
    assert finding_of(queue.backlog, fresh(server)).seen == "4 of 200"
    assert finding_of(queue.workers, fresh(server)).status is Health.OK


def test_a_partition_without_a_group(server: RealServer) -> None:
    all_groups(server)
    client: Any = server.client
    assert finding_of(queue.group, fresh(server)).status is Health.OK
    queued(server, 3)
    client.xgroup_destroy(KEYS[3].queue, GROUP)
    assert finding_of(queue.group, fresh(server)).status is Health.FAIL


def test_a_consumer_that_is_silent_in_one_partition(server: RealServer) -> None:
    all_groups(server)
    client: Any = server.client
    queued(server, 1)
    for partition in range(PARTITIONS):
        client.xgroup_createconsumer(KEYS[partition].queue, GROUP, "w1")
    [[_, [[entry_id, _]]]] = client.xreadgroup(GROUP, "w1", {KEYS[1].queue: ">"}, count=1)
    client.xclaim(KEYS[1].queue, GROUP, "w1", 0, [entry_id], idle=10_000_000)
    found = finding_of(queue.pending, fresh(server))
    assert found.status is Health.FAIL
    assert found.seen.startswith("1 in work")


def test_something_else_under_a_name_of_one(server: RealServer) -> None:
    all_groups(server)
    assert finding_of(queue.key_types, fresh(server)).status is Health.OK
    client: Any = server.client
    client.set(KEYS[2].index, "x")
    found = finding_of(queue.key_types, fresh(server))
    assert found.status is Health.FAIL
    assert "{2}:jobs:stream:index is a string, not a zset" in found.seen


def test_schedules_and_dead_letters_of_all(server: RealServer) -> None:
    all_groups(server)
    client: Any = server.client
    now_ms = time.time() * 1000
    client.zadd(KEYS[1].scheduled, {"a": now_ms + 60_000})
    client.zadd(KEYS[3].scheduled, {"b": now_ms + 60_000})
    assert finding_of(queue.scheduled, fresh(server)).seen == "2 jobs waiting for their time"
    client.zadd(KEYS[3].scheduled, {"c": now_ms - 600_000})
    found = finding_of(queue.scheduled, fresh(server))
    assert (found.status, found.seen[:13]) == (Health.FAIL, "1 job overdue")
    assert finding_of(queue.dead_letters, fresh(server)).status is Health.OK
    client.xadd(KEYS[1].dead_letters, {"reason": "newer"}, id="1760000000001-0")
    client.xadd(KEYS[2].dead_letters, {"reason": "older"}, id="1760000000000-9")
    found = finding_of(queue.dead_letters, fresh(server))
    assert found.seen == "2 dead letters; the last: newer"


@pytest.fixture
def other() -> Iterator[RealServer]:
    """A server that a test may end."""
    server = RealServer(require_binary(SYSTEM))
    yield server
    server.close()


def test_a_server_that_is_away_is_named(server: RealServer, other: RealServer) -> None:
    machine = fresh(server)
    place = RedisServer(RedisTarget(other.url, "--redis"))
    machine.partitions = (*machine.partitions[:3], PartitionServer(3, KEYS[3], place))
    [found] = findings_of(redis.partitions, machine)  # ours are without an append-only file
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


def test_lanes_are_part_of_the_queue(server: RealServer) -> None:
    settings = WorkerSettings(lanes="high,low")
    keys, client = settings.keys, server.client
    client.xgroup_create(keys.queue, GROUP, id="0", mkstream=True)
    group = finding_of(queue.group, real_machine(server, worker_settings=settings))
    assert group.status is Health.OK, "nobody has asked for the lanes yet"
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
