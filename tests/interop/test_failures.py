"""Workers that are killed, stopped or frozen, and a Redis that restarts. No job is lost or run
twice without need.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.node import TIMEOUT_S, require_node
from tests.interop.site import LOCK_MS, RENEW_MS, Site
from tests.support.processes.worker import wait_until
from tests.support.servers import SYSTEM, RealServer, require_binary

pytestmark = [pytest.mark.process, pytest.mark.slow("kills, freezes and restarts processes")]

#: An expired lock is detected soon, even if the only notification went to a worker that cannot act
#: on it.
SHORT_INTERVALS = {
    "BULLMQ_STALLED_INTERVAL_MS": 300,
    "BULLMQ_DRAIN_DELAY_S": 1,
    "BULLMQ_CONCURRENCY": 2,
}


@pytest.fixture
def failure_site(tmp_path: Path) -> Iterator[Site]:
    """A separate site whose Redis is persistent."""
    require_node()
    site = Site("bullmq6", tmp_path, RealServer(require_binary(SYSTEM), durable=True))
    site.node.ask("listen", queue="q")
    yield site
    site.close()


def marks(path: Path) -> list[tuple[str, int]]:
    if not path.exists():
        return []
    pairs = (line.split() for line in path.read_text().splitlines())
    return [(word, int(pid)) for word, pid in pairs]


def began(path: Path, count: int = 1) -> Callable[[], Any]:
    return lambda: len([1 for word, _ in marks(path) if word == "began"]) >= count


def test_a_job_of_a_killed_worker_is_run_again(failure_site: Site, tmp_path: Path) -> None:
    node, mark = failure_site.node, tmp_path / "mark"
    first = failure_site.worker("q", **SHORT_INTERVALS)
    gate = tmp_path / "gate"
    job_id = node.add("q", "held", {"gate": str(gate), "mark": str(mark)}, priority=1)
    wait_until(began(mark), TIMEOUT_S)
    first.kill()
    gate.touch()
    second = failure_site.worker("q", **SHORT_INTERVALS)
    assert node.finished("q", job_id) == job_id
    assert marks(mark) == [("began", first.pid), ("began", second.pid), ("ended", second.pid)]
    node.until("q", "stalled", job_id=job_id)
    job = node.job("q", job_id)
    assert (job["stalledCounter"], job["attemptsMade"], job["attemptsStarted"]) == (1, 1, 2)


def test_a_worker_frozen_past_its_lock_writes_nothing(failure_site: Site, tmp_path: Path) -> None:
    node, mark, gate = failure_site.node, tmp_path / "mark", tmp_path / "gate"
    first = failure_site.worker("q", **SHORT_INTERVALS)
    job_id = node.add("q", "held", {"gate": str(gate), "mark": str(mark)})
    wait_until(began(mark), TIMEOUT_S)
    os.kill(first.pid, signal.SIGSTOP)
    gate.touch()
    second = failure_site.worker("q", **SHORT_INTERVALS)
    assert node.finished("q", job_id) == job_id
    os.kill(first.pid, signal.SIGCONT)
    other = node.add("q", "slow", {"ms": 1, "mark": str(mark)})
    node.until("q", "completed", job_id=other)
    first.send_signal(signal.SIGTERM)
    assert first.wait(TIMEOUT_S) == 0
    completed = [event.job_id for event in node.events("q", "completed")]
    assert sorted(completed) == sorted([job_id, other])
    assert ("ended", second.pid) in marks(mark)
    assert node.job("q", job_id)["attemptsMade"] == 1


def test_workers_of_node_and_sluice_take_over_from_each_other(
    failure_site: Site, tmp_path: Path
) -> None:
    node, mark = failure_site.node, tmp_path / "mark"
    ours = failure_site.worker("q", **SHORT_INTERVALS)
    # for Sluice's worker, for Node's
    data = {"gate": str(tmp_path / "gate"), "mark": str(mark), "ms": 1}
    job_id = node.add("q", "held", data)
    wait_until(began(mark), TIMEOUT_S)
    ours.kill()
    locks = {"lockDuration": LOCK_MS, "lockRenewTime": RENEW_MS, "stalledInterval": 300}
    node.ask("work", queue="q", kind="slow", concurrency=2, **locks)
    assert node.finished("q", job_id) == job_id
    assert [event.job_id for event in node.events("q", "ran")] == [job_id]
    assert node.job("q", job_id)["stalledCounter"] == 1

    other = node.add("q", "slow", {"ms": 30_000})
    node.until("q", "ran", job_id=other)
    node.process.send_signal(signal.SIGKILL)
    again = Site("bullmq6", tmp_path, failure_site.server)
    try:
        again.node.ask("listen", queue="q")
        failure_site.server.client.hset(failure_site.keys("q").job(other), "data", '{"ms": 1}')
        again.worker("q", **SHORT_INTERVALS)
        assert again.node.finished("q", other) == other
    finally:
        again.leave()
