"""Jobs submitted over HTTP, run by Node's worker or Sluice's; HTTP shows the outcome."""

from __future__ import annotations

import json

import pytest

from tests.interop.site import Site

pytestmark = [pytest.mark.process, pytest.mark.slow("test_smoke runs a job of HTTP")]


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


def test_sluice_runs_a_job_submitted_over_http(site: Site, queue: str) -> None:
    job_id = site.post(queue, "video-generation", {"videoId": "v"}, priority=1, attempts=3)
    with site.stream(f"{queue}/jobs/{job_id}/events") as blocks:
        events = list(blocks)
    assert [block.event for block in events][-1] == "completed"
    shown = [
        json.loads(block.data)["data"]["data"] for block in events if block.event == "progress"
    ]
    assert shown == [25, 50, 75, 100]
    assert site.view(queue, job_id)["returnvalue"] == {"videoUrl": "https://example.com/v"}


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
