"""Workflows and webhooks under the Redis users of the services: nothing is denied."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.installer.layout import GATEWAY, WORKER
from tests.deploy.test_acl import in_script, is_refused
from tests.support.deploy.acl import InstalledRedis, wait_until
from tests.support.processes.gateway import PYTHON_M, GatewayProcess
from tests.support.processes.rag import SOURCES, RagProcesses
from tests.support.processes.webhooks import ReceiverProcess
from tests.support.processes.worker import Process, spawner

pytestmark = pytest.mark.process
JOB = "workflow:job:wf_20260214_001"
COMMANDS = [
    ("HSET", JOB, "status", "queued"),
    ("RPUSH", f"{JOB}:outbox", "{}"),
    ("LINDEX", f"{JOB}:outbox", "0"),
    ("LPOP", f"{JOB}:outbox"),
    ("ZADD", "workflow:webhooks", "1", "wf_20260214_001"),
    ("XADD", "workflow:webhooks:dlq", "*", "event_id", "x"),
    ("XRANGE", "workflow:webhooks:dlq", "-", "+"),
    ("PUBLISH", "workflow:webhooks:wake", "x"),
]


def test_permissions_of_gateway_and_worker(installed_redis: InstalledRedis) -> None:
    installed_redis.admin.flushall()
    gateway, worker = installed_redis.client(GATEWAY), installed_redis.client(WORKER)
    for command in COMMANDS:
        for client in (gateway, worker):
            assert not is_refused(client, *command), command
            assert not is_refused(client, *in_script(*command)), command
    # Only the gateway may use idempotency keys, and only one channel is allowed.
    for key in ("idempotency.wf:create:k", "idempotency.wf.of:red:create:k"):
        assert not is_refused(gateway, "HSET", key, "fingerprint", "x")
        assert is_refused(worker, "HGETALL", key)
    for client in (gateway, worker):
        assert is_refused(client, "PUBLISH", "workflow:else", "x")
        assert is_refused(client, "RPUSH", "workflows:x", "x")
        assert is_refused(client, "BLPOP", f"{JOB}:outbox", "1")
        assert is_refused(client, "LMOVE", f"{JOB}:outbox", "workflow:x", "LEFT", "LEFT")


@pytest.fixture
def clean(installed_redis: InstalledRedis) -> Iterator[None]:
    """Empties Redis before the test; afterwards checks that nothing was denied."""
    installed_redis.admin.flushall()
    installed_redis.admin.acl_log_reset()
    yield
    assert installed_redis.refusals() == set()


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    yield from spawner(tmp_path)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    process = ReceiverProcess(tmp_path, {"/bad": [400, 200]})
    yield process
    process.close()


@pytest.fixture
def site(
    installed_redis: InstalledRedis, spawn: Callable[..., Process], tmp_path: Path
) -> Iterator[RagProcesses]:
    allowed = {"WORKFLOW_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}
    url = installed_redis.url(GATEWAY)
    settings = {**installed_redis.gateway_settings, **allowed}
    gateway = GatewayProcess(PYTHON_M, tmp_path / "g.log", REDIS_URL=url, PORT="0", **settings)
    gateway.wait_until_listening()

    def start(**settings: object) -> Process:
        worker = spawn("worker", redis_url=installed_redis.url(WORKER), **allowed, **settings)
        worker.wait_for_line("takes jobs", 60)
        return worker

    yield RagProcesses(gateway, start)
    gateway.close()


@pytest.mark.slow("starts a gateway and a worker")
def test_a_workflow_from_end_to_end(
    installed_redis: InstalledRedis, clean: None, site: RagProcesses, receiver: ReceiverProcess
) -> None:
    site.start(workflow_reconcile_s=0.5)
    url = receiver.url("/hook")
    body = {"namespace": "notes", "sources": SOURCES, "webhook_url": url, "auto_advance": True}
    _, created = site.ask("POST", "/api/workflow/jobs", {**body, "idempotency_key": "k"})
    job_id = created["job"]["job_id"]
    jobs = f"/api/workflow/jobs/{job_id}"
    wait_until(lambda: site.job(job_id)["status"] == "waiting_input", 90)
    [first, *_] = site.items(job_id, "proposals")
    edited = {"to": "another name", "auto_approve": False}
    assert site.ask("PATCH", f"{jobs}/proposals/{first['id']}/ontology", edited)[0] == 200
    assert site.undo(job_id, f"undo_{first['id']}")[0] == 200
    assert site.ask("POST", f"{jobs}/proposals/bulk", {"action": "approve", "all": True})[0] == 200
    wait_until(lambda: site.job(job_id)["status"] == "completed", 90)
    for path in ("results", "events", "status"):
        assert site.ask("GET", f"{jobs}/{path}")[0] == 200
    assert site.ask("GET", "/api/workflow/jobs")[0] == 200
    assert site.found("DLQ")
    token = site.job(job_id)["undo"]["last_undo_token"]
    assert site.undo(job_id, token)[0] == 200
    wait_until(lambda: "job.completed" in receiver.types("/hook"), 30)
    assert receiver.types("/hook")[0] == "job.created"
    assert installed_redis.refusals() == set()


@pytest.mark.slow("starts a gateway and a worker")
def test_failed_webhooks_can_be_redriven(
    clean: None, site: RagProcesses, receiver: ReceiverProcess
) -> None:
    _, created = site.ask("POST", "/api/workflow/jobs", {"webhook_url": receiver.url("/bad")})
    site.start()
    dlq = "/api/workflow/webhooks/dlq"
    wait_until(lambda: site.ask("GET", dlq)[1]["pagination"]["total"] == 1, 30)
    assert site.ask("POST", f"{dlq}/redrive", {"all": True})[0] == 200
    wait_until(lambda: len(receiver.got("/bad")) == 2, 30)
    before, after = (base64.b64decode(line["body"]) for line in receiver.got("/bad"))
    assert before == after
    status, _ = site.ask("POST", f"/api/workflow/jobs/{created['job']['job_id']}/cancel", {})
    assert status == 200
