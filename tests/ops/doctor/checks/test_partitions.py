"""Checks of a queue with several partitions and their servers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sluice.common.settings.worker import WorkerSettings
from sluice.ops.doctor.checks import queue as checks
from sluice.ops.doctor.checks import redis
from sluice.ops.doctor.finding import Health
from sluice.ops.doctor.machine import Machine
from sluice.ops.doctor.redis_server import PartitionServer, RedisServer
from sluice.ops.redis_target import RedisTarget
from tests.ops.doctor.machines import (
    GROUP,
    Queue,
    expect_skipped,
    finding_of,
    findings_of,
    real_machine,
)
from tests.support.servers import SYSTEM, RealServer, require_binary

SETTINGS = WorkerSettings(queue_partitions=4)
KEYS = SETTINGS.partitions.keys


@pytest.fixture
def queue(server: RealServer) -> Queue:
    queue = Queue(server, SETTINGS)
    queue.create_groups()
    return queue


def test_all_partitions_on_one_server(queue: Queue, server: RealServer) -> None:
    [found] = findings_of(redis.partitions, queue.machine())
    assert found.status is Health.OK
    assert found.seen.startswith("4 partitions on 1 server: partitions 0, 1, 2, 3 at ")
    expect_skipped(redis.partitions, real_machine(server))  # a single partition


def test_waiting_jobs_are_summed(queue: Queue) -> None:
    for partition, age_s in [(0, 5.0), (2, 300.0), (2, 1.0), (3, 2.0)]:
        queue.enqueue(partition, age_s=age_s)
    queue.beat()
    found = queue.expect(checks.waiting, Health.WARN)
    assert found.seen.startswith("4 waiting, the oldest for 5 min")
    assert finding_of(checks.backlog, queue.machine()).seen == "4 of 200"
    queue.expect(checks.workers, Health.OK)


def test_problem_in_one_partition(queue: Queue) -> None:
    queue.expect(checks.group, Health.OK)
    queue.enqueue(3)
    queue.client.xgroup_destroy(KEYS[3].queue, GROUP)
    queue.expect(checks.group, Health.FAIL)
    queue.expect(checks.key_types, Health.OK)
    queue.client.set(KEYS[2].index, "x")
    seen = "{2}:jobs:stream:index is a string, not a zset"
    queue.expect(checks.key_types, Health.FAIL, seen=seen)


def test_expired_lease_in_one_partition(queue: Queue) -> None:
    queue.enqueue(1)
    for keys in KEYS:
        queue.client.xgroup_createconsumer(keys.queue, GROUP, "w1")
    queue.take(1, idle_ms=10_000_000)
    found = queue.expect(checks.pending, Health.FAIL)
    assert found.seen.startswith("1 in progress")


def test_scheduled_jobs_and_dead_letters_are_summed(queue: Queue) -> None:
    now_ms = time.time() * 1000
    queue.client.zadd(KEYS[1].scheduled, {"a": now_ms + 60_000})
    queue.client.zadd(KEYS[3].scheduled, {"b": now_ms + 60_000})
    assert finding_of(checks.scheduled, queue.machine()).seen == "2 scheduled jobs"
    queue.client.zadd(KEYS[3].scheduled, {"c": now_ms - 600_000})
    assert queue.expect(checks.scheduled, Health.FAIL).seen.startswith("1 job overdue")
    queue.expect(checks.dead_letters, Health.OK)
    queue.client.xadd(KEYS[1].dead_letters, {"reason": "newer"}, id="1760000000001-0")
    queue.client.xadd(KEYS[2].dead_letters, {"reason": "older"}, id="1760000000000-9")
    found = finding_of(checks.dead_letters, queue.machine())
    assert found.seen == "2 dead letters; the last: newer"


@pytest.fixture
def other() -> Iterator[RealServer]:
    server = RealServer(require_binary(SYSTEM))
    yield server
    server.close()


def test_unreachable_server_is_reported(queue: Queue, other: RealServer) -> None:
    def machine() -> Machine:
        """The last partition is on the other server."""
        machine = queue.machine()
        elsewhere = RedisServer(RedisTarget(other.url, "--redis"))
        machine.partitions = (*machine.partitions[:3], PartitionServer(3, KEYS[3], elsewhere))
        return machine

    [found] = findings_of(redis.partitions, machine())  # test servers have no append-only file
    assert (found.status, "partition 3 at " in found.seen) == (Health.WARN, True)
    assert "append-only" in found.seen
    other.kill()
    broken = machine()
    [found] = findings_of(redis.partitions, broken)
    assert found.status is Health.FAIL
    assert found.seen.startswith("partition 3 at ")
    expect_skipped(checks.waiting, broken, r"partition 3 .* redis\.partitions")
