"""A worker that is killed or frozen during a job: another one finishes it, once."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.process.test_worker_process import GROUP, QUEUE, handlers, post, status, types
from tests.support.backends import RealServer
from tests.worker.processes import TIMEOUT_S, Process, wait_until

pytestmark = pytest.mark.process
LEASE_MS = 900
#: For workers that must not lose their job while the machine stalls, for up to two thirds of it.
LONG_LEASE_MS = 7500
#: A lease and two seconds, as in docs/reliability.md; the fastest of this many kills counts,
#: because the machine may be busy.
TAKEN_OVER_S = LONG_LEASE_MS / 1000 + 2
TRIES = 3


def echo(
    spawn: Callable[..., Process],
    server: RealServer,
    name: str,
    delay_ms: int,
    lease_ms: int = LEASE_MS,
) -> Process:
    """A worker that logs the start of attempts."""
    return spawn(
        "worker.echo_worker",
        REDIS_URL=server.url,
        CONSUMER=name,
        LEASE_MS=lease_ms,
        BLOCK_MS=50,
        ECHO_DELAY_MS=delay_ms,
        MAX_ATTEMPTS=3,
        LOG_LEVEL="debug",
    )


def attempts(client: redis.Redis, job_id: str) -> list[int]:
    entries = client.xrange(f"job:{job_id}:events")
    return [
        json.loads(fields[b"data"])["attempt"]
        for _, fields in entries
        if fields[b"type"] == b"running"
    ]


def test_a_killed_workers_job_is_finished_by_another(
    server: RealServer, spawn: Callable[..., Process]
) -> None:
    client = server.client
    took_s: list[float] = []
    while not took_s or (min(took_s) >= TAKEN_OVER_S and len(took_s) < TRIES):
        doomed = echo(spawn, server, "doomed", 60_000, LONG_LEASE_MS)
        job_id = post(client)
        wait_until(lambda job_id=job_id: status(client, job_id) == b"running")
        heir = echo(spawn, server, "heir", 0, LONG_LEASE_MS)
        heir.wait_for_line("takes jobs")
        os.kill(doomed.pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda job_id=job_id: status(client, job_id) == b"done")
        took_s.append(time.monotonic() - killed)
        assert types(client, job_id) == [b"queued", b"running", b"running", b"message", b"done"]
        assert attempts(client, job_id) == [1, 2]
        assert client.xpending(QUEUE, GROUP)["pending"] == 0
        for worker in (doomed, heir):
            worker.kill()
            worker.wait()
    assert min(took_s) < TAKEN_OVER_S, took_s


def test_a_frozen_worker_writes_nothing_when_it_resumes(
    server: RealServer, spawn: Callable[..., Process]
) -> None:
    client = server.client
    frozen = echo(spawn, server, "frozen", 1500)
    job_id = post(client)
    frozen.wait_for_line("attempt 1 begins")  # before that, there is nothing to lose
    frozen.send_signal(signal.SIGSTOP)
    echo(spawn, server, "heir", 0)
    wait_until(lambda: status(client, job_id) == b"done")
    before = client.xrange(f"job:{job_id}:events")
    frozen.send_signal(signal.SIGCONT)
    # Whichever comes first: it renews and learns that it has lost the lease, or reports after the
    # end.
    wait_until(lambda: "was lost" in frozen.log or "done by attempt 1" in frozen.log)
    assert client.xrange(f"job:{job_id}:events") == before
    assert [kind for kind in types(client, job_id) if kind == b"done"] == [b"done"]
    assert client.xpending(QUEUE, GROUP)["pending"] == 0


def test_a_job_longer_than_its_lease_runs_once(
    server: RealServer, spawn: Callable[..., Process]
) -> None:
    client = server.client
    two_leases_ms = LONG_LEASE_MS * 2
    for name in ("one", "other"):
        echo(spawn, server, name, two_leases_ms, LONG_LEASE_MS).wait_for_line("takes jobs")
    job_id = post(client)
    wait_until(lambda: status(client, job_id) == b"done", two_leases_ms / 1000 + TIMEOUT_S)
    assert attempts(client, job_id) == [1]


@pytest.mark.parametrize("keyword", ["async def", "def"])
def test_a_job_that_blocks_the_cpu_past_its_lease_runs_once(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Path, keyword: str
) -> None:
    blocks_s = LONG_LEASE_MS * 1.4 / 1000  # others check for expired leases every second
    own = handlers(
        tmp_path,
        f"""
        import time

        {keyword} hog(context, payload):
            until = time.monotonic() + {blocks_s}
            while time.monotonic() < until:
                pass
            return {{}}

        def register(registry):
            registry.add("chat", hog)
        """,
    )
    client = server.client
    for name in ("one", "other"):
        spawn(
            "worker", redis_url=server.url, consumer=name, lease_ms=LONG_LEASE_MS, block_ms=50,
            **own,
        ).wait_for_line("takes jobs")  # fmt: skip
    job_id = post(client)
    wait_until(lambda: status(client, job_id) == b"done", blocks_s + TIMEOUT_S)
    assert attempts(client, job_id) == [1]
    assert client.xpending(QUEUE, GROUP)["pending"] == 0


def test_a_job_that_kills_its_workers_is_dead_lettered(
    server: RealServer, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    (tmp_path / "deadly.py").write_text(
        "import os\n"
        "async def die(context, payload):\n"
        "    os._exit(9)\n"
        "def register(registry):\n"
        "    registry.add('chat', die)\n"
    )
    client = server.client
    job_id = post(client)
    for attempt in range(4):  # three that crash, one that dead-letters it
        worker = spawn(
            "worker",
            REDIS_URL=server.url,
            CONSUMER=f"w{attempt}",
            LEASE_MS=LEASE_MS,
            BLOCK_MS=50,
            MAX_ATTEMPTS=3,
            WORKER_HANDLERS="deadly",
            PYTHONPATH=str(tmp_path),
        )
        if attempt < 3:
            assert worker.wait() == 9
    wait_until(lambda: status(client, job_id) == b"error")
    assert types(client, job_id) == [b"queued", b"running", b"running", b"running", b"error"]
    error = json.loads(client.hget(f"job:{job_id}", "error"))
    assert error["kind"] == "attempts_exhausted"
    [(_, dead_letter)] = client.xrange("jobs:dlq")
    assert dead_letter[b"reason"] == b"attempts_exhausted"
    assert json.loads(dead_letter[b"fields"])["job_id"] == job_id
    assert client.xpending(QUEUE, GROUP)["pending"] == 0
