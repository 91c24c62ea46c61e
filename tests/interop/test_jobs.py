"""Node adds jobs for Sluice's worker, HTTP adds jobs for Node's: both keep the rules of BullMQ."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.interop import install
from tests.interop.node import RELEASES, TIMEOUT_S, NodeError, require_node
from tests.interop.site import DRAIN_DELAY_S, Site
from tests.support.processes.worker import ROOT, Process
from tests.support.servers import SYSTEM, RealServer, require_binary

pytestmark = [pytest.mark.process, pytest.mark.slow("test_smoke has one job in each direction")]

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


def test_unpaired_surrogates_of_node_arrive_and_return(site: Site, queue: str) -> None:
    """Only names lose them, in BullMQ itself."""
    data = {"text": "a\ud800b", "\udc00": "ü"}
    job_id = site.node.add(queue, "echo", data)
    assert site.node.finished(queue, job_id) == data
    shown = {"text": "a\ufffdb", "\ufffd": "ü"}
    view = site.view(queue, job_id)
    assert (view["data"], view["returnvalue"]) == (shown, shown)
    with site.stream(f"{queue}/jobs/{job_id}/events") as blocks:
        [returned] = [block.json()["data"] for block in blocks if block.event == "completed"]
    assert returned["returnvalue"] == shown
    named = site.node.add(queue, "odd\ud800name")
    with pytest.raises(NodeError, match="no handler for job name"):
        site.node.finished(queue, named)
    assert site.view(queue, named)["name"].strip("\ufffd").startswith("odd\ufffd")


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


# -- jobs submitted over HTTP ------------------------------------------------------------------


def test_node_retries_as_requested(site: Site, node_queue: str) -> None:
    backoff = {"type": "exponential", "delay": 50, "jitter": 0.5}
    job_id = site.post(node_queue, "transient", {"failures": 2}, attempts=3, backoff=backoff)
    assert site.node.finished(node_queue, job_id) == {"attempts": 3}
    assert len(site.node.events(node_queue, "delayed", job_id=job_id)) == 2
    failed = site.post(node_queue, "permanent", attempts=5, backoff=10)
    site.node.until(node_queue, "failed", job_id=failed)
    job = site.view(node_queue, failed)
    assert (job["state"], job["failedReason"], job["attemptsMade"]) == ("failed", "never", 1)
    assert len(job["stacktrace"]) == 1


def test_order_delay_and_removal_follow_bullmq(site: Site, node_queue: str) -> None:
    node = site.node
    node.queue(node_queue, "pause")
    ids = [site.post(node_queue, "echo", priority=priority) for priority in (3, 1, 2)]
    plain = site.post(node_queue, "echo")
    first = site.post(node_queue, "echo", lifo=True)
    late = site.post(node_queue, "echo", delay=500)
    removed = site.post(node_queue, "echo")
    assert site.http("DELETE", f"{node_queue}/jobs/{removed}")[1]["outcome"] == "removed"
    node.queue(node_queue, "resume")
    node.until(node_queue, "completed", count=6)
    order = [event.job_id for event in node.events(node_queue, "active")]
    assert order == [first, plain, ids[1], ids[2], ids[0], late]
    job = site.view(node_queue, late)
    assert job["processedOn"] - job["timestamp"] >= 500
    gone = site.post(node_queue, "echo", removeOnComplete=True)
    node.until(node_queue, "completed", job_id=gone)
    assert site.http("GET", f"{node_queue}/jobs/{gone}")[0] == 404


def test_a_job_id_is_unique_for_node_too(site: Site, node_queue: str) -> None:
    node = site.node
    body = {"name": "echo", "data": {"n": 1}}
    answers = [
        site.http("POST", f"{node_queue}/jobs", body, idempotency_key="video-7") for _ in range(3)
    ]
    assert [answer["outcome"] for _, answer in answers] == ["added", "replayed", "replayed"]
    node.until(node_queue, "completed", job_id="video-7")
    node.add(node_queue, "echo", jobId="video-7")  # Node finds it, too
    node.until(node_queue, "duplicated", job_id="video-7")
    opts = {"deduplication": {"id": "same"}}
    node.queue(node_queue, "pause")
    first = site.post(node_queue, "echo", **opts)
    assert node.add(node_queue, "echo", **opts) == first
    node.queue(node_queue, "resume")
    node.until(node_queue, "completed", job_id=first)
    assert len(node.events(node_queue, "active")) == 2


def test_queue_events_include_jobs_run_by_node(site: Site, node_queue: str) -> None:
    with site.stream(f"{node_queue}/events") as blocks:
        assert next(blocks).event == "hello"
        job_id = site.node.add(node_queue, "echo", {"n": 1})
        events = []
        for block in blocks:
            events.append((block.event, json.loads(block.data)["data"].get("jobId")))
            if block.event == "completed":
                break
    names = ["added", "waiting", "active", "completed"]
    assert events == [(name, job_id) for name in names]


def test_a_running_job_is_canceled_over_http(site: Site, queue: str) -> None:
    job_id = site.post(queue, "slow", {"ms": 60_000}, attempts=3)
    site.node.until(queue, "active", job_id=job_id)
    status, answer = site.http("DELETE", f"{queue}/jobs/{job_id}")
    assert (status, answer["outcome"]) == (202, "canceling")
    site.node.until(queue, "failed", job_id=job_id)
    job = site.view(queue, job_id)
    # failed permanently, although attempts are left
    assert (job["state"], job["attemptsMade"]) == ("failed", 1)
    assert "cancel" in job["failedReason"]


def test_workers_of_node_and_sluice_share_a_queue(site: Site, queue: str) -> None:
    node = site.node
    node.ask("work", queue=queue, kind="noop", concurrency=5)
    ids = node.ask("flood", queue=queue, count=300, name="slow")  # each 20 ms in Sluice's worker
    node.until(queue, "completed", count=300)
    assert sorted(event.job_id for event in node.events(queue, "completed")) == sorted(ids)
    by_node = {event.job_id for event in node.events(queue, "ran")}
    assert 0 < len(by_node) < 300
    node.ask("rest", queue=queue)


# -- the example in examples/bullmq ------------------------------------------------------------


EXAMPLE = ROOT / "examples" / "bullmq"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    require_node()
    server = RealServer(require_binary(SYSTEM))
    worker = Process(
        "worker.bullmq",
        tmp_path / "worker.log",
        REDIS_URL=server.url,
        BULLMQ_QUEUES="video-generation",
        PYTHONPATH=str(EXAMPLE),
        WORKER_HANDLERS="video",
    )
    yield server
    worker.kill()
    server.close()


@pytest.mark.parametrize("release", RELEASES)
def test_node_submits_and_python_generates(
    server: RealServer, release: str, tmp_path: Path
) -> None:
    here = tmp_path / "example"
    (here / "node_modules").mkdir(parents=True)
    # as npm would install it
    (here / "node_modules" / "bullmq").symlink_to(install.MODULES / release)
    (here / "producer.mjs").write_text((EXAMPLE / "producer.mjs").read_text())
    done = subprocess.run(
        ["node", "producer.mjs"],
        cwd=here,
        env={**os.environ, "REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "job 1: submitted"
    assert lines[1:5] == [f"job 1: {percent} %" for percent in (25, 50, 75, 100)]
    assert re.fullmatch(
        r'job 1: done \{"videoUrl":"https://example.com/videos/[0-9a-f-]{36}\.mp4","duration":15\}',
        lines[5],
    )
