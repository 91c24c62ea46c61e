"""Webhooks between real processes: gateway, workers and a receiver, with failures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.process.crashpoints import CRASH_VARIABLE, CrashPoint
from tests.support.processes.webhooks import SECRET, WebhookProcesses, unreachable_url
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import RealServer

pytestmark = pytest.mark.process
SLOW = pytest.mark.slow("waits for timeouts and retries")


@pytest.fixture
def processes(
    server: RealServer, tmp_path: Path, spawn: Callable[..., Process]
) -> Iterator[WebhookProcesses]:
    processes = WebhookProcesses(server.url, spawn, tmp_path)
    yield processes
    processes.close()


def check_signature(line: dict[str, Any]) -> None:
    """As a receiver does it, with only the contract."""
    headers, body = line["headers"], base64.b64decode(line["body"])
    signed = headers["x-workflow-timestamp"].encode() + b"." + body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["x-workflow-signature"] == f"sha256={digest}"
    assert headers["x-workflow-signature-version"] == "v1"
    assert headers["x-workflow-event"] == "job_callback"
    assert abs(int(headers["x-workflow-timestamp"]) - line["at"]) <= 10


def test_a_webhook_is_delivered_with_a_signature(processes: WebhookProcesses) -> None:
    receiver = processes.receiver({})
    job_id = processes.job(receiver.url("/hook"))
    processes.call("POST", f"/jobs/{job_id}/cancel", {})
    processes.worker()
    wait_until(lambda: receiver.types("/hook") == ["job.created", "job.cancelled"])
    for line in receiver.got("/hook"):
        check_signature(line)
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "ok")
    assert not processes.lines()


@SLOW
def test_failed_webhooks_are_dead_lettered_and_redriven(processes: WebhookProcesses) -> None:
    receiver = processes.receiver(
        {"/flaky": [500, 500, 200], "/bad": [400, 200], "/hang": ["hang"]}
    )
    processes.worker()
    jobs = {path: processes.job(receiver.url(path)) for path in ("/flaky", "/bad", "/hang")}
    jobs["nobody"] = processes.job(unreachable_url())
    wait_until(lambda: len(receiver.got("/flaky")) == 3)  # not delayed by the others
    assert len(set(receiver.bodies("/flaky"))) == 1
    wait_until(lambda: processes.webhook(jobs["/flaky"])["last_delivery_status"] == "ok")

    # Permanent errors fail at once, transient ones after their retries.
    failed = {"/bad": (1, 400), "/hang": (3, None), "nobody": (3, None)}
    wait_until(lambda: set(processes.dead_letters()) == {jobs[path] for path in failed})
    lines = {line["job_id"]: line for line in processes.lines()}
    for path, (attempts, status) in failed.items():
        line, dead_letter = lines[jobs[path]], processes.dead_letters()[jobs[path]]
        assert processes.webhook(jobs[path])["last_delivery_status"] == "failed"
        assert (line["attempts"], dead_letter["attempts"]) == (attempts, attempts)
        assert [each["status"] for each in line["attempts_detail"]] == [status] * attempts
        assert line["attempts_detail"] == dead_letter["attempts_detail"]
        assert line["payload"] == dead_letter["payload"]
        assert json.loads(base64.b64decode(line["replay"]["body_base64"])) == line["payload"]
    assert lines[jobs["nobody"]]["attempts_detail"][0]["error"] == "Connection refused"
    assert SECRET not in processes.file.read_text()

    # Redriven byte for byte, and only once.
    event_id = processes.dead_letters()[jobs["/bad"]]["event_id"]
    wanted = {"event_ids": [event_id]}
    assert processes.call("POST", "/webhooks/dlq/redrive", wanted)["redriven"] == [event_id]
    wait_until(lambda: processes.dead_letters()[jobs["/bad"]]["redrive"]["status"] == "ok")
    assert processes.call("POST", "/webhooks/dlq/redrive", wanted)["skipped"] == [event_id]
    before, after = receiver.got("/bad")
    assert before["body"] == after["body"]
    check_signature(after)
    outcome = processes.lines()[-1]
    assert (outcome["event_id"], outcome["ok"]) == (event_id, True)
    assert processes.webhook(jobs["/bad"])["last_delivery_status"] == "ok"


@SLOW
def test_a_crash_after_sending_loses_nothing(processes: WebhookProcesses) -> None:
    receiver = processes.receiver({})
    job_id = processes.job(receiver.url("/hook"))
    processes.call("POST", f"/jobs/{job_id}/cancel", {})
    doomed = processes.start_worker(**{CRASH_VARIABLE: CrashPoint.AFTER_DELIVERY.value})
    assert doomed.wait() == -9
    assert receiver.types("/hook") == ["job.created"]
    processes.worker("other")
    wait_until(lambda: len(receiver.got("/hook")) == 3, 60)
    assert receiver.types("/hook") == ["job.created", "job.created", "job.cancelled"]
    first, again, _ = receiver.bodies("/hook")
    assert first == again  # the receiver recognises it by its event_id
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "ok")
    assert not processes.lines()


@SLOW
def test_an_unavailable_receiver_gets_its_webhooks_later(
    processes: WebhookProcesses, server: RealServer
) -> None:
    """Deliveries wait in Redis, not in a worker: the worker is restarted meanwhile."""
    url = unreachable_url()
    first = processes.worker(
        "first",
        workflow_webhook_retry_backoff_seconds=3600,
        workflow_webhook_retry_cap_seconds=3600,
    )
    job_id = processes.job(url)
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "retrying")
    first.wait_for_line("attempt 1 of 3")
    first.kill()
    [(_, due_ms)] = server.client.zrange("workflow:webhooks", 0, -1, withscores=True)
    assert due_ms > 1e12
    server.client.zadd("workflow:webhooks", {job_id: 1})  # an hour later
    second = processes.worker("second", workflow_webhook_max_retries=1)
    second.wait_for_line("dead-lettered after 2 attempts")
    wait_until(lambda: processes.webhook(job_id)["last_delivery_status"] == "failed")
    [line] = processes.lines()
    assert [each["attempt"] for each in line["attempts_detail"]] == [1, 2]
    beats = "jobs:stream:worker:"

    def delivered() -> bool:
        names = server.client.keys(f"{beats}*")
        found = [server.client.get(name) or b"{}" for name in names]
        return any(json.loads(beat).get("webhooks", {}).get("failed") == 1 for beat in found)

    wait_until(delivered)
