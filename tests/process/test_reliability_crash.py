"""Workers killed between attempts, with pending messages, or with a slot of a limited task."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable

import pytest
import redis

from tests.process.test_worker_process import QUEUE, pending, post, status, types
from tests.support.backends import RealServer
from tests.worker.processes import Process, wait_until

pytestmark = pytest.mark.process

#: Longer than a stall of the machine: only a killed or waiting worker loses a message.
LEASE_MS = 8000

HANDLERS = """
import asyncio
from worker.errors import TransientError

async def work(context, payload):
    await asyncio.sleep(payload.get("s", 0.1) if context.attempt == 1 else 0.05)
    return context.attempt

async def flaky(context, payload):
    if context.attempt == 1:
        raise TransientError("once", retry_after_s=payload.get("wait_s", 1))
    return context.attempt

def register(registry):
    registry.add("chat", work)
    registry.add("code", work)
    registry.add("plan", flaky)
"""


def kill(worker: Process) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


def times(client: redis.Redis, job_id: str, kind: bytes) -> list[int]:
    entries = client.xrange(f"job:{job_id}:events")
    return [int(fields[b"ts"]) for _, fields in entries if fields[b"type"] == kind]


def now_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def ended(client: redis.Redis, jobs: list[str], how: bytes = b"done") -> None:
    wait_until(lambda: all(status(client, job_id) == how for job_id in jobs), 60)


def max_concurrent(client: redis.Redis, jobs: list[str]) -> int:
    """Maximum number of jobs that ran at the same time, in the time of Redis."""
    moments: list[tuple[int, int]] = []
    for job_id in jobs:
        [begun], [end] = times(client, job_id, b"running"), times(client, job_id, b"done")
        moments += [(begun, 1), (end, -1)]
    running = most = 0
    for _, change in sorted(moments):  # in the same millisecond, ends come before starts
        running += change
        most = max(most, running)
    return most


def test_killed_between_two_attempts(one_server: RealServer, start: Callable[..., Process]) -> None:
    client = one_server.client
    doomed = start("doomed", lease_ms=LEASE_MS)
    jobs = [post(client, '{"wait_s":10}', "plan") for _ in range(3)]
    wait_until(lambda: all(b"retry" in types(client, job_id) for job_id in jobs))
    kill(doomed)
    start("heir", lease_ms=LEASE_MS)
    ended(client, jobs)
    for job_id in jobs:
        assert types(client, job_id) == [b"queued", b"running", b"retry", b"running", b"done"]
        assert client.hget(f"job:{job_id}", "result") == b"2"
        [failed] = times(client, job_id, b"retry")
        assert times(client, job_id, b"running")[1] - failed >= 10_000
    assert pending(client) == 0


def test_other_workers_respect_the_retry_delay(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    """The delay is longer than the lease: other workers claim the message and wait, too."""
    client = one_server.client
    for name in ("a", "b"):
        start(name, lease_ms=LEASE_MS)
    jobs = [post(client, '{"wait_s":10}', "plan") for _ in range(4)]
    ended(client, jobs)
    for job_id in jobs:
        assert types(client, job_id) == [b"queued", b"running", b"retry", b"running", b"done"]
        [failed] = times(client, job_id, b"retry")
        assert 10_000 <= times(client, job_id, b"running")[1] - failed < 20_000
    wait_until(lambda: pending(client) == 0)


def test_a_restarted_worker_finds_its_messages(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    """Messages that it had not started are run at once, started ones when the old lease expires."""
    client = one_server.client
    lease_ms = 12_000
    settings = {"lease_ms": lease_ms, "task_limits": "chat:1"}
    first = start("same", **settings)
    begun = post(client, '{"s":60}')
    wait_until(lambda: status(client, begun) == b"running")
    parked = [post(client) for _ in range(3)]
    wait_until(lambda: pending(client) == 4)
    kill(first)
    deadline = int(client.hget(f"job:{begun}:lease", "deadline_ms"))
    start("same", **settings)
    up = now_ms(client)
    ended(client, [begun, *parked])
    for job_id in parked:
        assert types(client, job_id) == [b"queued", b"running", b"done"]
    if up + 6000 < deadline:  # the machine was fast enough to tell
        assert times(client, parked[0], b"running")[0] < deadline
    again = times(client, begun, b"running")[1]
    assert deadline <= again < max(deadline, up) + lease_ms  # not a whole lease later
    wait_until(lambda: pending(client) == 0)


def test_two_live_workers_of_one_name_run_nothing_twice(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    client = one_server.client
    start("twin", lease_ms=LEASE_MS)
    jobs = [post(client, '{"s":1}') for _ in range(12)]
    wait_until(lambda: b"running" in types(client, jobs[0]))
    start("twin", lease_ms=LEASE_MS)
    jobs += [post(client, '{"s":0.05}') for _ in range(12)]
    ended(client, jobs)
    for job_id in jobs:
        assert types(client, job_id) == [b"queued", b"running", b"done"]
    wait_until(lambda: pending(client) == 0)


def test_a_limit_across_processes_is_never_exceeded(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    client = one_server.client
    for name in ("a", "b"):
        start(name, task_limits_global="chat:2")
    limited = [post(client, '{"s":0.03}') for _ in range(20)]
    free = [post(client, '{"s":0.3}', "code") for _ in range(20)]
    ended(client, [*limited, *free])
    assert max_concurrent(client, limited) <= 2
    assert max_concurrent(client, free) > 2  # other tasks were not limited
    wait_until(lambda: pending(client) == 0)
    assert client.zcard(f"{QUEUE}:running:chat") == 0


def test_a_killed_worker_frees_its_slot_after_its_lease(
    one_server: RealServer, start: Callable[..., Process]
) -> None:
    client = one_server.client
    settings = {"lease_ms": LEASE_MS, "task_limits_global": "chat:1"}
    doomed = start("doomed", **settings)
    held = post(client, '{"s":60}')
    wait_until(lambda: status(client, held) == b"running")
    start("other", **settings)
    waiting = [post(client) for _ in range(3)]
    free = post(client, "{}", "code")
    ended(client, [free])
    assert {status(client, job_id) for job_id in waiting} == {b"queued"}
    kill(doomed)
    deadline = int(client.hget(f"job:{held}:lease", "deadline_ms"))
    ended(client, [held, *waiting])
    first = min(times(client, job_id, b"running")[0] for job_id in waiting)
    assert deadline <= first < deadline + 10_000
    spans = sorted(
        (times(client, job_id, b"running")[-1], times(client, job_id, b"done")[0])
        for job_id in [held, *waiting]
    )
    for (_, end), (begin, _) in itertools.pairwise(spans):
        assert end <= begin
    wait_until(lambda: pending(client) == 0)
    assert json.loads(client.hget(f"job:{held}", "result")) == 2
