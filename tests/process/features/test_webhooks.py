"""Webhooks of workers that are killed or restarted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluice.common.process.crashpoints import CRASH_VARIABLE, CrashPoint
from tests.support.processes.features import WebhookProcesses, unreachable_url
from tests.support.processes.worker import wait_until
from tests.support.servers import RealServer

pytestmark = [pytest.mark.process, pytest.mark.slow("starts a gateway and workers")]


@pytest.fixture
def processes(
    server: RealServer, start_processes: Callable[..., WebhookProcesses]
) -> WebhookProcesses:
    return start_processes(WebhookProcesses, server.url)


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
