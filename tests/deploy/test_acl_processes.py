"""Gateway and worker under their Redis users: everything works, nothing is denied."""

from __future__ import annotations

import re
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from deploy.installer import probe
from deploy.installer.layout import ADMIN, GATEWAY, WORKER
from deploy.installer.resp import Resp
from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.rag import RagKeys, SearchMode
from sluice.common.features.rag.documents import DocumentRecord, RagReader
from sluice.common.jobs.store import Fence, WorkerIdentity
from sluice.common.observability.heartbeats import read_heartbeats
from sluice.common.process.usage import LoopLag
from sluice.common.redis.connection import async_client
from sluice.worker.features.rag.index.cache import NamespaceCache
from sluice.worker.features.rag.search import Searcher
from sluice.worker.features.rag.store import NewDocument, RagStore
from sluice.worker.features.rag.text.chunking import Span
from sluice.worker.features.rag.vectors.base import pack_vectors
from sluice.worker.monitoring.heartbeat import HeartbeatSender
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.deploy.acl import PASSWORDS, InstalledRedis
from tests.support.gateway.harness import make_gateway
from tests.support.processes.base import Processes, Spawn
from tests.support.processes.commands import run
from tests.support.processes.features import SOURCES, RagProcesses, ReceiverProcess
from tests.support.processes.worker import Process, wait_until
from tests.support.servers import Backend
from tests.support.worker.harness import WorkerHarness
from tests.support.worker.rag import WordEmbedder, vector_of

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("nothing_denied")]

TEXT = "A sluice is a gate."


async def test_all_metrics_are_collected(installed_redis: InstalledRedis) -> None:
    theirs = Backend(WORKER, installed_redis.url(WORKER))
    ours = Backend(GATEWAY, installed_redis.url(GATEWAY))
    rig = WorkerHarness(theirs, JobKeys(), WorkerIdentity("workers", "c1", 30_000, 600))
    gateway = make_gateway(ours)
    await rig.reader.ensure_group()
    await gateway.create()
    sender = HeartbeatSender(rig.consumers, rig.keys, 5.0, LoopLag())
    beat = await sender.run_once()
    assert (beat.queue.waiting, beat.queue.pending) == (1, 0)
    assert beat.queue.oldest_ms
    assert beat.queue.stream_bytes
    found = await scrape(gateway)
    assert found.value("gw_up") == 1
    assert found.value("gw_queue_depth") == 1
    assert found.value("gw_queue_oldest_age_seconds") < 60
    assert found.value("gw_stream_bytes") > 0
    assert found.value("gw_redis_memory_ratio") > 0
    assert found.value("gw_worker_up", worker="c1") == 1
    assert (await gateway.client.get("/v1/status")).status == 200
    assert (await gateway.client.get("/v1/workers")).json()["workers"]
    await sender.remove()
    assert await read_heartbeats(rig.client, rig.keys) == []
    for opened in (rig, gateway, theirs, ours):
        await opened.close()


@pytest.mark.parametrize("tenant", ["", "red"])
async def test_a_document_is_added_found_and_deleted(
    installed_redis: InstalledRedis, tenant: str
) -> None:
    admin, keys = installed_redis.admin, RagKeys("default", tenant)
    for attempt in (1, 2):
        admin.hset(f"job:{attempt}:lease", mapping={"attempt": "1", "token": "t"})
    async with (
        async_client(installed_redis.url(WORKER), connections=2) as working,
        async_client(installed_redis.url(GATEWAY), connections=2) as reading,
    ):
        store = RagStore(working, 10)
        shelves = NamespaceCache(working, store)
        searcher = Searcher(store, shelves, WordEmbedder())
        record = DocumentRecord("d", "Gates", "text/plain", 19, 1, "ab", "r", 0, "words-64")
        rows = pack_vectors([vector_of(TEXT)])
        document = NewDocument(record, TEXT, [Span(0, len(TEXT))], rows.data)
        await store.commit(Fence("job:1:lease", 1, "t"), "1", keys, document)
        await shelves.changed(keys, [], record, rows)
        for mode in (SearchMode.LEXICAL, SearchMode.VECTOR, SearchMode.AUTO):
            [hit] = (await searcher.find(keys, "gate", 5, mode)).hits
            assert hit.quote == TEXT
        reader = RagReader(reading)
        assert [each.id for each in (await reader.list(keys)).records] == ["d"]
        assert await reader.text(keys, "d", 0, 8) == "A sluice"
        assert await reader.namespaces(tenant) == ["default"]
        assert (await store.remove(Fence("job:2:lease", 1, "t"), keys, "d"))["deleted"]
        await shelves.changed(keys, [record])
        assert (await searcher.find(keys, "gate", 5)).hits == []
        await shelves.close()
    assert admin.keys("rag*") == []


# -- real processes ----------------------------------------------------------------------------


CHAT = {"task": "chat", "payload": {"text": "hello"}}


class InstalledProcesses(Processes):
    """A gateway and echo workers, each with its own Redis user."""

    WORKER: ClassVar[dict[str, object]] = {"audit_every_s": 0.5, "heartbeat_s": 0.5}

    def __init__(self, redis: InstalledRedis, spawn: Spawn, directory: Path, **more: str) -> None:
        self._worker_url = redis.url(WORKER)
        settings = {**redis.gateway_settings, **more}
        super().__init__(redis.url(GATEWAY), spawn, directory, **settings)

    def start_worker(
        self, name: str = "one", module: str = "worker.echo_worker", **settings: object
    ) -> Process:
        return super().start_worker(name, module, redis_url=self._worker_url, **settings)

    def echo(self, name: str = "one", **settings: object) -> Process:
        return self.worker(name, "worker.echo_worker", **settings)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.request(method, path, body, headers=named)
        is_json = "json" in answer.headers.get("content-type", "")
        return answer.status_code, answer.json() if is_json else answer.text

    def run_job(self, **headers: str) -> None:
        status, ended = self.ask("POST", "/v1/jobs", CHAT, Prefer="wait=20", **headers)
        assert (status, ended["status"]) == (200, "done")

    def wait_for(self, job_id: str, *statuses: str) -> None:
        wait_until(lambda: self.ask("GET", f"/v1/jobs/{job_id}")[1]["status"] in statuses)


Start = Callable[..., InstalledProcesses]


@pytest.fixture
def start(installed_redis: InstalledRedis, spawn: Spawn, tmp_path: Path) -> Iterator[Start]:
    started: list[InstalledProcesses] = []

    def go(**settings: str) -> InstalledProcesses:
        started.append(InstalledProcesses(installed_redis, spawn, tmp_path, **settings))
        return started[-1]

    yield go
    for processes in started:
        processes.close()


def test_a_job_of_every_kind(installed_redis: InstalledRedis, start: Start) -> None:
    site = start()
    worker = site.echo()
    site.run_job()
    options = {"timeout_s": 5, "max_attempts": 3, "backoff": {"initial_s": 0.1}, "ttl_s": 60}
    with_options, later = site.gateway.submit(**options), site.gateway.submit(delay_s=0.3)
    first = site.ask("POST", "/v1/jobs", CHAT, Idempotency_Key="k")
    again = site.ask("POST", "/v1/jobs", CHAT, Idempotency_Key="k")
    assert first[1] == again[1]
    for job_id in (with_options, later):
        site.wait_for(job_id, "done")
    _, stream = site.ask("GET", f"/v1/jobs/{later}/events")
    assert "event: scheduled" in stream
    assert "event: done" in stream
    # The worker runs the integrity check, and the gateway reports the result.
    wait_until(lambda: site.ask("GET", "/v1/audit")[1]["last"]["jobs_checked"] >= 4)
    assert site.ask("GET", "/v1/audit")[1]["last"]["violations_total"] == 0
    with Resp(installed_redis.socket, ADMIN, PASSWORDS[ADMIN]) as admin:
        probe.run_job(probe.Gateway(f"127.0.0.1:{site.gateway.port}"), admin, JobKeys())
    # The worker trims acknowledged messages.
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow("starts a gateway and a worker")
def test_cancel_and_dead_letters(installed_redis: InstalledRedis, start: Start) -> None:
    site = start()
    for job_id in (site.gateway.submit(), site.gateway.submit(delay_s=60)):
        assert site.ask("POST", f"/v1/jobs/{job_id}/cancel")[0] in (200, 202)
        site.wait_for(job_id, "canceled")
    site.echo(echo_delay_ms=60_000)
    running = site.gateway.submit()
    site.wait_for(running, "running")
    site.ask("POST", f"/v1/jobs/{running}/cancel")
    site.wait_for(running, "canceled")

    for _ in range(3):
        message: Any = {"job_id": str(uuid.uuid4()), "task": "chat", "payload": '{"text":"x"}'}
        installed_redis.admin.xadd("jobs:stream", message)
    wait_until(lambda: site.ask("GET", "/v1/dlq")[1]["total"] == 3)
    newest, second, oldest = site.ask("GET", "/v1/dlq")[1]["items"]
    assert site.ask("GET", f"/v1/dlq/{newest['id']}")[0] == 200
    assert site.ask("POST", f"/v1/dlq/{newest['id']}/redrive")[0] == 202
    redriven = site.ask("POST", "/v1/dlq/redrive", {"ids": [second["id"]]})[1]["redriven"]
    assert len(redriven) == 1
    assert site.ask("DELETE", f"/v1/dlq/{oldest['id']}")[0] == 204
    assert site.ask("DELETE", "/v1/dlq?all=true")[0] == 200


@pytest.mark.slow("starts a gateway and a worker")
def test_operator_endpoints(installed_redis: InstalledRedis, start: Start) -> None:
    site = start(BACKPRESSURE_MAX_BACKLOG="5")
    for path in ("/healthz", "/readyz", "/v1/status", "/metrics", "/v1/audit", "/openapi.json"):
        assert site.ask("GET", path)[0] == 200, path
    worker = site.echo()
    wait_until(lambda: installed_redis.admin.exists("jobs:stream:workers"))
    site.run_job()
    for path in ("/v1/status", "/metrics", "/v1/stats?range=14d", "/v1/queues", "/v1/workers"):
        assert site.ask("GET", path)[0] == 200, path
    wait_until(lambda: installed_redis.admin.exists("jobs:stream:stats:10s"), 30)
    assert site.ask("POST", "/v1/queues/jobs:stream/pause")[0] == 200
    worker.wait_for_line("the queue is paused")
    assert site.ask("POST", "/v1/queues/jobs:stream/resume")[0] == 200
    worker.wait_for_line("queue resumed")
    status, problem = site.ask("POST", "/v1/audit")
    assert (status, problem["code"]) == (503, "audit_not_permitted")
    installed_redis.admin.acl_log_reset()  # the last command was expected to be denied
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow("starts a gateway")
def test_backlog_where_redis_does_not_know_the_lag(
    installed_redis: InstalledRedis, start: Start
) -> None:
    """The gateway may not count queue entries, so it uses an upper bound."""
    admin = installed_redis.admin
    site = start(BACKPRESSURE_MAX_BACKLOG="5")
    for _ in range(3):
        site.gateway.submit()
    admin.execute_command("XGROUP", "CREATE", "jobs:stream", "workers", "0")
    admin.xreadgroup("workers", "me", {"jobs:stream": ">"}, count=1)
    _, second, _ = (entry_id for entry_id, _ in admin.xrange("jobs:stream"))
    admin.xdel("jobs:stream", second)
    if installed_redis.has_selectors:
        [group] = admin.xinfo_groups("jobs:stream")
        assert group["lag"] is None
    accepted = 0
    while site.ask("POST", "/v1/jobs", CHAT)[0] == 202:
        accepted += 1
    assert accepted == 3  # one runs and one waits: three more make five
    if installed_redis.has_selectors:  # the gateway did try
        assert installed_redis.refusals() == {(GATEWAY, "jobs:stream")}
        admin.acl_log_reset()


@pytest.mark.slow("starts a gateway and workers")
def test_a_worker_that_dies_and_one_that_drains(start: Start) -> None:
    site = start()
    first = site.echo(echo_delay_ms=60_000)
    job_id = site.gateway.submit()
    site.wait_for(job_id, "running")
    first.kill()
    # Slow enough to observe the job while it runs, unless this process is stalled.
    second = site.echo("two", echo_delay_ms=3000, lease_ms=5000)
    site.wait_for(job_id, "done")
    last = site.gateway.submit()
    site.wait_for(last, "running", "done")
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0
    assert site.ask("GET", f"/v1/jobs/{last}")[1]["status"] == "done"


@pytest.mark.slow("starts a gateway and a worker")
def test_keys_with_limits(installed_redis: InstalledRedis, start: Start) -> None:
    options = ("--name", "test", "--rate", "100/s", "--max-jobs", "50")
    made = run("key", "create", *options, REDIS_URL=installed_redis.url(ADMIN))
    match = re.search(r"sluice_\w+", made.out)
    assert match is not None, made
    site = start(AUTH="required")
    assert site.ask("POST", "/v1/jobs", CHAT)[0] == 401
    site.echo()
    site.run_job(Authorization=f"Bearer {match[0]}")
    site.gateway.stop()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    process = ReceiverProcess(tmp_path, {"/bad": [400, 200]})
    yield process
    process.close()


@pytest.fixture
def workflows(start: Start) -> RagProcesses:
    processes = start(WORKFLOW_WEBHOOK_ALLOWED_HOSTS="127.0.0.1")
    return RagProcesses(
        processes.gateway, lambda **settings: processes.worker(lease_ms=30_000, **settings)
    )


@pytest.mark.slow("starts a gateway and a worker")
def test_a_workflow_from_end_to_end(workflows: RagProcesses, receiver: ReceiverProcess) -> None:
    workflows.start(workflow_reconcile_s=0.5)
    url = receiver.url("/hook")
    body = {"namespace": "notes", "sources": SOURCES, "webhook_url": url, "auto_advance": True}
    _, created = workflows.ask("POST", "/api/workflow/jobs", {**body, "idempotency_key": "k"})
    job_id = created["job"]["job_id"]
    jobs = f"/api/workflow/jobs/{job_id}"
    wait_until(lambda: workflows.job(job_id)["status"] == "waiting_input", 90)
    [first, *_] = workflows.items(job_id, "proposals")
    for method, path, sent in [
        ("PATCH", f"proposals/{first['id']}/ontology", {"to": "other", "auto_approve": False}),
        ("POST", "undo", {"undo_token": f"undo_{first['id']}"}),
        ("POST", "proposals/bulk", {"action": "approve", "all": True}),
    ]:
        assert workflows.ask(method, f"{jobs}/{path}", sent)[0] == 200, path
    wait_until(lambda: workflows.job(job_id)["status"] == "completed", 90)
    for path in ("/results", "/events", "/status"):
        assert workflows.ask("GET", f"{jobs}{path}")[0] == 200, path
    assert workflows.ask("GET", "/api/workflow/jobs")[0] == 200
    assert workflows.found("DLQ")
    assert workflows.undo(job_id, workflows.job(job_id)["undo"]["last_undo_token"])[0] == 200
    wait_until(lambda: "job.completed" in receiver.types("/hook"), 30)
    assert receiver.types("/hook")[0] == "job.created"


@pytest.mark.slow("starts a gateway and a worker")
def test_failed_webhooks_can_be_redriven(
    workflows: RagProcesses, receiver: ReceiverProcess
) -> None:
    url = receiver.url("/bad")
    _, created = workflows.ask("POST", "/api/workflow/jobs", {"webhook_url": url})
    workflows.start()
    dlq = "/api/workflow/webhooks/dlq"
    wait_until(lambda: workflows.ask("GET", dlq)[1]["pagination"]["total"] == 1, 30)
    assert workflows.ask("POST", f"{dlq}/redrive", {"all": True})[0] == 200
    wait_until(lambda: len(receiver.got("/bad")) == 2, 30)
    before, after = receiver.bodies("/bad")
    assert before == after
    job_id = created["job"]["job_id"]
    assert workflows.ask("POST", f"/api/workflow/jobs/{job_id}/cancel", {})[0] == 200
