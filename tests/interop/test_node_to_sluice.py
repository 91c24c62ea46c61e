"""Node adds jobs and watches them, Sluice's worker runs them: each rule of the seed, as Node sees
it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.interop.node import NodeError
from tests.interop.site import DRAIN_DELAY_S, Site

pytestmark = [pytest.mark.process, pytest.mark.slow("test_smoke runs a job of Node")]

EXPONENTIAL = {"type": "exponential", "delay": 100}
#: Long enough for a machine that stalls now and then; much shorter than the next poll of a worker
#: that was not woken up.
SOON_MS = DRAIN_DELAY_S * 1000 // 2


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ([{"priority": priority} for priority in (3, 1, 2, 1, 0)], [4, 1, 3, 2, 0]),
        ([{}, {}, {}, {}, {"lifo": True}], [4, 0, 1, 2, 3]),
    ],
    ids=["priority", "lifo"],
)
def test_jobs_run_in_their_order(
    site: Site, queue: str, options: list[dict[str, Any]], order: list[int]
) -> None:
    node = site.node
    node.queue(queue, "pause")
    ids = [node.add(queue, "echo", **each) for each in options]
    node.queue(queue, "resume")
    active = node.until(queue, "active", count=len(ids))
    assert [event.job_id for event in active] == [ids[at] for at in order]


def test_a_paused_queue_runs_no_jobs(site: Site, queue: str) -> None:
    node = site.node
    node.queue(queue, "pause")
    job_id = node.add(queue, "echo")
    probe = site.queue()
    node.finished(probe, node.add(probe, "echo"))  # the worker is running, on another queue
    assert node.job(queue, job_id, "getState") == "waiting"
    node.queue(queue, "resume")
    node.finished(queue, job_id)


def test_a_transient_error_is_retried_with_the_jobs_backoff(site: Site, queue: str) -> None:
    node = site.node
    job_id = node.add(queue, "transient", {"failures": 2}, attempts=3, backoff=EXPONENTIAL)
    assert node.finished(queue, job_id) == {"attempts": 3}
    events = [event.event for event in node.events(queue, job_id=job_id)]
    assert [name for name in events if name != "retry"] == [
        *("added", "waiting", "active", "delayed"),
        *("waiting", "active", "delayed", "waiting", "active", "completed"),
    ]
    assert events.count("retry") == 2  # in addition to those of the seed
    retries = node.events(queue, "retry", job_id=job_id)
    assert [int(event.args["delay"]) for event in retries] == [100, 200]
    job = node.job(queue, job_id)
    assert (job["attemptsMade"], job["attemptsStarted"]) == (3, 3)
    assert len(job["stacktrace"]) == 2
    assert job["processedOn"] - job["timestamp"] >= 300


def test_a_job_fails_when_its_attempts_are_used_up(site: Site, queue: str) -> None:
    node = site.node
    job_id = node.add(queue, "transient", {"failures": 9}, attempts=2, backoff=10)
    with pytest.raises(NodeError, match="not yet: 2"):
        node.finished(queue, job_id)
    node.until(queue, "retries-exhausted", job_id=job_id)
    job = node.job(queue, job_id)
    assert (job["attemptsMade"], len(job["stacktrace"])) == (2, 2)
    assert "not yet: 2" in job["failedReason"]
    assert node.job(queue, job_id, "getState") == "failed"
    node.job(queue, job_id, "retry")  # a manual retry
    node.until(queue, "failed", job_id=job_id, count=2)


def test_permanent_errors_fail_at_once(site: Site, queue: str) -> None:
    node = site.node
    for name, reason in (
        ("permanent", "never"),
        ("unknown-name", "no handler for job name 'unknown-name'"),
        ("unserialisable", "JSON"),
    ):
        job_id = node.add(queue, name, attempts=5, backoff=10)
        with pytest.raises(NodeError, match=reason):
            node.finished(queue, job_id)
        assert node.job(queue, job_id)["attemptsMade"] == 1
    assert not node.events(queue, "delayed", "retry")


def test_delayed_jobs_start_on_time(site: Site, queue: str) -> None:
    node = site.node
    job_id = node.add(queue, "echo", delay=400)
    node.finished(queue, job_id)
    events = [event.event for event in node.events(queue, job_id=job_id)]
    assert events == ["added", "delayed", "waiting", "active", "completed"]
    job = node.job(queue, job_id)
    assert 400 <= job["processedOn"] - job["timestamp"] < SOON_MS


def test_a_removed_job_does_not_run(site: Site, queue: str) -> None:
    node = site.node
    gone = node.add(queue, "echo", removeOnComplete=True)
    failed = node.add(queue, "permanent", removeOnFail=True)
    for _ in range(3):
        kept = node.add(queue, "echo", removeOnComplete=1)
        node.until(queue, "completed", job_id=kept)
    node.until(queue, "completed", job_id=gone)
    node.until(queue, "failed", job_id=failed)
    counts = node.queue(queue, "getJobCounts", "completed", "failed")
    assert counts == {"completed": 1, "failed": 0}
    assert not site.server.client.exists(site.keys(queue).job(gone))


def test_children_run_before_their_parent_or_fail_it(site: Site, queue: str) -> None:
    children = [{"name": "echo", "queueName": queue, "data": {"n": n}} for n in range(3)]
    tree = {"name": "children", "queueName": queue, "data": {}, "children": children}
    added = site.node.ask("flow", tree=tree)
    parent = added["job"]["id"]
    values = site.node.finished(queue, parent)
    assert sorted(value["n"] for value in values) == [0, 1, 2]
    done = [event.job_id for event in site.node.events(queue, "completed")]
    assert done[-1] == parent
    assert len(done) == 4
    child = {"name": "permanent", "queueName": queue, "opts": {"failParentOnFailure": True}}
    added = site.node.ask("flow", tree={"name": "echo", "queueName": queue, "children": [child]})
    site.node.until(queue, "failed", job_id=added["job"]["id"])
    assert len(site.node.events(queue, "completed")) == 4


def test_a_scheduler_creates_the_next_job(site: Site, queue: str) -> None:
    node = site.node
    template = {"name": "echo", "data": {"tick": True}}
    node.queue(queue, "upsertJobScheduler", "clock", {"every": 200}, template)
    node.until(queue, "completed", count=4)
    assert node.queue(queue, "removeJobScheduler", "clock")
    ids = [event.job_id for event in node.events(queue, "completed")][1:4]
    due = [int(job_id.rpartition(":")[2]) for job_id in ids]
    assert all(later - earlier >= 200 for earlier, later in pairwise(due))
    for due_ms, job_id in zip(due, ids):
        assert due_ms <= node.job(queue, job_id)["processedOn"] < due_ms + SOON_MS


def test_a_deduplicated_job_runs_once_until_it_has_ended(
    site: Site, queue: str, tmp_path: Path
) -> None:
    node, gate = site.node, tmp_path / "gate"
    opts = {"deduplication": {"id": "same"}}
    first = node.add(queue, "held", {"gate": str(gate)}, **opts)
    node.until(queue, "active", job_id=first)
    assert node.add(queue, "held", {"gate": str(gate)}, **opts) == first
    gate.touch()
    node.finished(queue, first)
    assert node.add(queue, "slow", {"ms": 1}, **opts) != first  # its key was released
    node.until(queue, "completed", count=2)
    assert len(node.events(queue, "active")) == 2


def test_limits_of_the_queue_are_kept(site: Site, queue: str) -> None:
    node = site.node
    node.queue(queue, "setGlobalRateLimit", 2, 500)
    node.queue(queue, "setGlobalConcurrency", 1)
    for _ in range(6):
        node.add(queue, "slow", {"ms": 60})
    node.until(queue, "completed", count=6)
    turns = [event.event for event in node.events(queue, "active", "completed")]
    assert turns == ["active", "completed"] * 6
    # Times of Redis: a worker sends the time at which it asked.
    events: Any = site.server.client.xrange(site.keys(queue).events)
    started = [
        int(entry_id.partition(b"-")[0])
        for entry_id, fields in events
        if fields[b"event"] == b"active"
    ]
    # Windows of 500 ms from the first start: two jobs in each.
    assert all(moment - started[0] >= 450 * (at // 2) for at, moment in enumerate(started))
    assert started[-1] - started[0] < SOON_MS


def test_five_hundred_concurrent_jobs_run_exactly_once(site: Site, queue: str) -> None:
    node = site.node
    ids = node.ask("flood", queue=queue, count=500, name="echo")
    assert len(set(ids)) == 500
    node.until(queue, "completed", count=500)
    for kind in ("active", "completed"):
        assert sorted(event.job_id for event in node.events(queue, kind)) == sorted(ids)
    values = {event.args["returnvalue"]["at"] for event in node.events(queue, "completed")}
    assert values == set(range(500))


def test_bulk_and_custom_ids(site: Site, queue: str) -> None:
    node = site.node
    jobs = [{"name": "echo", "data": {"n": n}, "opts": {"jobId": f"own-{n}"}} for n in range(50)]
    added = node.queue(queue, "addBulk", jobs)
    assert [job["id"] for job in added] == [f"own-{n}" for n in range(50)]
    node.until(queue, "completed", count=50)
    node.add(queue, "echo", jobId="own-7")
    node.until(queue, "duplicated", job_id="own-7")
    assert len(node.events(queue, "active")) == 50
