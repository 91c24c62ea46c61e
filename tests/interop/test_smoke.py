"""One job in each direction on the embedded Redis; the other tests of this package are slow."""

from __future__ import annotations

import pytest

from tests.interop.site import Site

pytestmark = pytest.mark.process

VIDEO = {
    "videoId": "550e8400-e29b-41d4-a716-446655440000",
    "userId": "user-123",
    "script": {"title": "My Video", "scenes": [{"sceneNumber": 1, "voiceover": "Welcome"}]},
    "userImageUrls": ["https://example.com/img1.jpg"],
}
UUID = "550e8400-e29b-41d4-a716-446655440000"
EXPONENTIAL = {"type": "exponential", "delay": 100}


def test_the_job_of_the_seed_completes(site: Site, queue: str) -> None:
    node = site.node
    job_id = node.add(queue, "video-generation", VIDEO, priority=1, attempts=3, backoff=EXPONENTIAL)
    value = node.finished(queue, job_id)
    assert value == {"videoUrl": f"https://example.com/{VIDEO['videoId']}"}
    events = [event.event for event in node.events(queue, job_id=job_id)]
    assert events == ["added", "waiting", "active", *["progress"] * 4, "completed"]
    assert [event.args["data"] for event in node.events(queue, "progress")] == [25, 50, 75, 100]
    job = node.job(queue, job_id)
    assert (job["progress"], job["attemptsMade"], job["attemptsStarted"]) == (100, 1, 1)
    assert job["returnvalue"] == value
    assert job["processedBy"]
    # A worker sends its time when it asks for a job, and may get one that is newer.
    assert job["timestamp"] - 5000 <= job["processedOn"] <= job["finishedOn"]
    logs = node.queue(queue, "getJobLogs", job_id)["logs"]
    assert [line.partition("harness")[2] for line in logs] == [" 1", " 2", " 3", " 4"]
    keys = site.keys(queue)
    assert not site.server.client.exists(keys.lock(job_id))
    assert not site.server.client.hexists(keys.job(job_id), "attemptsMade")  # Node would trust it
    assert len(node.queue(queue, "getWorkers")) >= 1


def test_node_runs_a_job_submitted_over_http(site: Site, node_queue: str) -> None:
    data, given = {"ä": "🎬", "long": "x" * 190_000}, {"jobId": UUID, "priority": 1}
    job_id = site.post(node_queue, "progress", data, **given)
    with site.stream(f"{node_queue}/jobs/{job_id}/events") as blocks:
        events = [block.event for block in blocks]
    assert events == ["hello", "added", "waiting", "active", *["progress"] * 4, "completed"]
    job = site.view(node_queue, job_id)
    assert (job["state"], job["progress"], job["attemptsMade"]) == ("completed", 100, 1)
    assert job["returnvalue"]["done"] == {"ä": "🎬", "long": "x" * 190_000}
    theirs = site.node.job(node_queue, job_id)
    for field in ("returnvalue", "data", "attemptsMade", "processedOn", "finishedOn", "priority"):
        assert job[field] == theirs[field], field
    assert theirs["opts"]["sluice"] == {}, "added by the gateway, because the id is a UUID"


def test_node_keeps_the_permissions_of_a_job(site: Site, queue: str) -> None:
    node, permissions = site.node, {"tenant": "shop", "tools": ["calculator"]}
    job_id = node.add(queue, "echo", jobId=UUID, sluice=permissions)
    node.finished(queue, job_id)
    assert node.job(queue, job_id)["opts"]["sluice"] == permissions
