"""Jobs come in over HTTP; Node's own worker, or ours, does them; HTTP tells what became of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.interop.site import Site

pytestmark = [pytest.mark.process, pytest.mark.redis]


@pytest.fixture
def fed(site: Site) -> str:
    """A queue that Node's worker takes jobs from."""
    name = site.unworked()
    site.node.ask("work", queue=name, kind="by-name", concurrency=5)
    return name


def view(site: Site, queue: str, job_id: str) -> dict[str, Any]:
    status, found = site.http("GET", f"{queue}/jobs/{job_id}")
    assert status == 200, found
    return found


def test_a_job_from_curl_is_done_by_node(site: Site, fed: str) -> None:
    job_id = site.post(fed, "progress", {"ä": "🎬", "long": "x" * 190_000}, priority=1)
    with site.stream(f"{fed}/jobs/{job_id}/events") as blocks:
        told = [block.event for block in blocks]
    assert told == ["hello", "added", "waiting", "active", *["progress"] * 4, "completed"]
    job = view(site, fed, job_id)
    assert (job["state"], job["progress"], job["attemptsMade"]) == ("completed", 100, 1)
    assert job["returnvalue"]["done"] == {"ä": "🎬", "long": "x" * 190_000}
    theirs = site.node.job(fed, job_id)
    for field in ("returnvalue", "data", "attemptsMade", "processedOn", "finishedOn", "priority"):
        assert job[field] == theirs[field], field


def test_node_tries_again_as_the_request_says(site: Site, fed: str) -> None:
    backoff = {"type": "exponential", "delay": 50, "jitter": 0.5}
    job_id = site.post(fed, "transient", {"failures": 2}, attempts=3, backoff=backoff)
    assert site.node.finished(fed, job_id) == {"attempts": 3}
    assert len(site.node.events(fed, "delayed", job_id=job_id)) == 2
    failed = site.post(fed, "permanent", attempts=5, backoff=10)
    site.node.until(fed, "failed", job_id=failed)
    job = view(site, fed, failed)
    assert (job["state"], job["failedReason"], job["attemptsMade"]) == ("failed", "never", 1)
    assert len(job["stacktrace"]) == 1


def test_order_delay_and_removal_are_bullmqs(site: Site, fed: str) -> None:
    node = site.node
    node.queue(fed, "pause")
    ids = [site.post(fed, "echo", priority=priority) for priority in (3, 1, 2)]
    plain = site.post(fed, "echo")
    first = site.post(fed, "echo", lifo=True)
    late = site.post(fed, "echo", delay=500)
    removed = site.post(fed, "echo")
    assert site.http("DELETE", f"{fed}/jobs/{removed}")[1]["outcome"] == "removed"
    node.queue(fed, "resume")
    node.until(fed, "completed", count=6)
    order = [event.job_id for event in node.events(fed, "active")]
    assert order == [first, plain, ids[1], ids[2], ids[0], late]
    job = view(site, fed, late)
    assert job["processedOn"] - job["timestamp"] >= 500
    gone = site.post(fed, "echo", removeOnComplete=True)
    node.until(fed, "completed", job_id=gone)
    assert site.http("GET", f"{fed}/jobs/{gone}")[0] == 404


def test_once_is_once_for_node_too(site: Site, fed: str) -> None:
    node = site.node
    body = {"name": "echo", "data": {"n": 1}}
    answers = [site.http("POST", f"{fed}/jobs", body, idempotency_key="video-7") for _ in range(3)]
    assert [answer["outcome"] for _, answer in answers] == ["added", "replayed", "replayed"]
    node.until(fed, "completed", job_id="video-7")
    node.add(fed, "echo", jobId="video-7")  # Node finds it, too
    node.until(fed, "duplicated", job_id="video-7")
    opts = {"deduplication": {"id": "same"}}
    node.queue(fed, "pause")
    first = site.post(fed, "echo", **opts)
    assert node.add(fed, "echo", **opts) == first
    node.queue(fed, "resume")
    node.until(fed, "completed", job_id=first)
    assert len(node.events(fed, "active")) == 2


def test_who_watches_a_queue_sees_what_node_does(site: Site, fed: str) -> None:
    with site.stream(f"{fed}/events") as blocks:
        assert next(blocks).event == "hello"
        job_id = site.node.add(fed, "echo", {"n": 1})
        told = []
        for block in blocks:
            told.append((block.event, json.loads(block.data)["data"].get("jobId")))
            if block.event == "completed":
                break
    names = ["added", "waiting", "active", "completed"]
    assert told == [(name, job_id) for name in names]


def test_a_job_from_curl_is_done_by_ours(site: Site, queue: str) -> None:
    job_id = site.post(queue, "video-generation", {"videoId": "v"}, priority=1, attempts=3)
    with site.stream(f"{queue}/jobs/{job_id}/events") as blocks:
        told = list(blocks)
    assert [block.event for block in told][-1] == "completed"
    shown = [json.loads(block.data)["data"]["data"] for block in told if block.event == "progress"]
    assert shown == [25, 50, 75, 100]
    assert view(site, queue, job_id)["returnvalue"] == {"videoUrl": "https://example.com/v"}


def test_a_running_job_of_ours_is_ended_over_http(site: Site, queue: str) -> None:
    job_id = site.post(queue, "slow", {"ms": 60_000}, attempts=3)
    site.node.until(queue, "active", job_id=job_id)
    status, answer = site.http("DELETE", f"{queue}/jobs/{job_id}")
    assert (status, answer["outcome"]) == (202, "canceling")
    site.node.until(queue, "failed", job_id=job_id)
    job = view(site, queue, job_id)
    assert (job["state"], job["attemptsMade"]) == ("failed", 1)  # for good, attempts left or not
    assert "cancel" in job["failedReason"]


def test_node_and_ours_share_a_queue(site: Site, queue: str) -> None:
    node = site.node
    node.ask("work", queue=queue, kind="echo", concurrency=5)
    ids = node.ask("flood", queue=queue, count=300, name="echo")
    node.until(queue, "completed", count=300)
    assert sorted(event.job_id for event in node.events(queue, "completed")) == sorted(ids)
    by_node = {event.job_id for event in node.events(queue, "ran")}
    assert 0 < len(by_node) < 300
    node.ask("rest", queue=queue)
