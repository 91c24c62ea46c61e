"""Workers that are killed or frozen: another one finishes their jobs, once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.processes.jobs import KEYS, attempts, pending, post, types, wait_for
from tests.support.processes.worker import TIMEOUT_S, Process, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
Spawn = Callable[..., Process]
StartWorker = Callable[..., Process]
SHORT_LEASE_MS = 900
#: For workers that must not lose their job while the machine stalls, for up to two thirds of it.
LEASE_MS = 7500
#: A lease and two seconds, as in docs/reliability.md; the fastest of this many kills counts,
#: because the machine may be busy.
TAKEN_OVER_S = LEASE_MS / 1000 + 2
TRIES = 3

HANDLERS = f"""
import asyncio, os, time

async def work(context, payload):
    if payload.get("dies"):
        os._exit(9)
    if payload.get("blocks"):
        block(context, payload)
    await asyncio.sleep(payload.get("s", 0.1) if context.attempt == 1 else 0.05)
    return context.attempt

def block(context, payload):
    until = time.monotonic() + {LEASE_MS * 1.4 / 1000}  # more than a lease
    while time.monotonic() < until:
        pass

def register(registry):
    registry.add("chat", work)
    registry.add("tool", block)
"""


def echo(
    spawn: Spawn, server: RealServer, name: str, delay_ms: int, lease_ms: int = SHORT_LEASE_MS
) -> Process:
    return spawn(
        "worker.echo_worker", redis_url=server.url, consumer=name, lease_ms=lease_ms, block_ms=50,
        echo_delay_ms=delay_ms, max_attempts=3, log_level="debug",
    )  # fmt: skip


def kill(worker: Process) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


def take_over(spawn: Spawn, server: RealServer, lease_ms: int) -> float:
    """Kills a worker during a job; returns the seconds until another one has finished the job."""
    client = server.client
    killed = echo(spawn, server, "killed", 60_000, lease_ms)
    job_id = post(client)
    wait_for(client, job_id, b"running")
    other = echo(spawn, server, "other", 0, lease_ms)
    other.wait_for_line("takes jobs")
    kill(killed)
    killed_at = time.monotonic()
    wait_for(client, job_id)
    took_s = time.monotonic() - killed_at
    assert types(client, job_id) == [b"queued", b"running", b"running", b"message", b"done"]
    assert attempts(client, job_id) == [1, 2]
    assert pending(client) == 0
    kill(other)
    return took_s


def test_another_worker_finishes_the_job_of_a_killed_one(server: RealServer, spawn: Spawn) -> None:
    take_over(spawn, server, SHORT_LEASE_MS)


@pytest.mark.slow("waits for leases to expire")
def test_a_job_is_taken_over_within_a_lease_and_two_seconds(
    one_server: RealServer, spawn: Spawn
) -> None:
    took_s = [take_over(spawn, one_server, LEASE_MS)]
    while min(took_s) >= TAKEN_OVER_S and len(took_s) < TRIES:
        took_s.append(take_over(spawn, one_server, LEASE_MS))
    assert min(took_s) < TAKEN_OVER_S, took_s


def test_a_frozen_worker_writes_nothing_when_it_resumes(server: RealServer, spawn: Spawn) -> None:
    client = server.client
    frozen = echo(spawn, server, "frozen", 1500)
    job_id = post(client)
    frozen.wait_for_line("attempt 1 begins")  # before that, there is nothing to lose
    frozen.send_signal(signal.SIGSTOP)
    echo(spawn, server, "other", 0)
    wait_for(client, job_id)
    before = client.xrange(KEYS.events(job_id))
    frozen.send_signal(signal.SIGCONT)
    # It either renews and learns that it has lost the lease, or reports after the
    # end.
    wait_until(lambda: "was lost" in frozen.log or "done by attempt 1" in frozen.log)
    assert client.xrange(KEYS.events(job_id)) == before
    assert types(client, job_id).count(b"done") == 1
    assert pending(client) == 0


@pytest.mark.slow("runs jobs that are longer than a lease")
@pytest.mark.parametrize(
    ("task", "payload"),
    [("chat", f'{{"s":{LEASE_MS * 2 / 1000}}}'), ("chat", '{"blocks":1}'), ("tool", "{}")],
    ids=["waits", "blocks the event loop", "blocks a thread"],
)
def test_a_job_longer_than_its_lease_runs_once(
    one_server: RealServer, start_worker: StartWorker, task: str, payload: str
) -> None:
    client = one_server.client
    for name in ("one", "other"):
        start_worker(one_server, name, lease_ms=LEASE_MS)
    job_id = post(client, payload, task)
    wait_for(client, job_id, timeout_s=LEASE_MS * 2 / 1000 + TIMEOUT_S)
    assert attempts(client, job_id) == [1]
    wait_until(lambda: pending(client) == 0)
