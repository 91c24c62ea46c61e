"""Data outside the job partitions, with four partitions: workflows, documents, images, API keys,
webhooks, statistics. Each key has the tag of a partition, and each command uses only one.

The Cluster has one node: it refuses cross-slot commands like any other, and MONITOR sees all
commands.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from sluice.common.contracts.jobs import JobKeys
from tests.support.processes.features import MANUAL, OTHER, RagProcesses, unreachable_url
from tests.support.processes.gateway import gateway_starter
from tests.support.processes.worker import spawner, wait_until
from tests.support.servers import SYSTEM, RealServer, require_binary
from tests.support.topologies import cluster
from tests.support.worker.images import photo

pytestmark = [pytest.mark.process, pytest.mark.slow("records every command of a server")]

PARTITIONS = 4
TIMEOUT_S = 60.0
_TAG = re.compile(rb"\{[0-3]\}:")
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_UNDIVIDED = (b"GET", JobKeys().schema.encode())
#: Replies for commands without keys.
_KEYLESS = ("The command has no key arguments", "Invalid arguments specified")


class Monitor:
    """Records every command of a server with MONITOR, including those of scripts."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._socket = socket.socket(kind, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"
        self.commands: set[tuple[bytes, ...]] = set()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError, ValueError):
            while line := self._lines.readline():
                _, _, arguments = line.partition(b"] ")
                self.commands.add(tuple(_ARGUMENT.findall(arguments)))

    def close(self) -> None:
        with suppress(OSError):  # it may be closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        self._lines.close()
        self._socket.close()


@dataclass
class RedisUnderTest:
    """A Redis with its URL for processes and its recorded commands."""

    url: str
    client: redis.Redis
    monitor: Monitor
    is_cluster: bool

    def check(self) -> None:
        """Every key has a tag; on a Cluster no command has two different ones."""
        names: Any = self.client.keys("*")
        assert names
        assert [name for name in names if not _TAG.match(name)] == []
        self.monitor.close()
        assert len(self.monitor.commands) > 100
        # At start, processes check for jobs without partitions on a single server.
        commands = self.monitor.commands - (set() if self.is_cluster else {_UNDIVIDED})
        for command in commands:
            name = command[0].upper()
            if name in (b"PUBLISH", b"SUBSCRIBE"):
                keys = list(command[1 : 2 if name == b"PUBLISH" else None])
            else:
                keys = self._keys_of(command) if len(command) > 1 else []
            tags = {found[0] if (found := _TAG.match(key)) else key for key in keys}
            assert all(map(_TAG.fullmatch, tags)), command[:8]
            assert len(tags) < 2 or not self.is_cluster, command[:8]

    def _keys_of(self, command: tuple[bytes, ...]) -> list[bytes]:
        try:
            found: Any = self.client.command_getkeys(*command)
        except redis.ResponseError as error:
            if not str(error).startswith(_KEYLESS):
                raise
            return []
        return [key if isinstance(key, bytes) else key.encode() for key in found]


@contextmanager
def one_server() -> Iterator[RedisUnderTest]:
    server = RealServer(require_binary(SYSTEM))
    monitor = Monitor(str(server.dir / "s"))
    try:
        yield RedisUnderTest(server.url, server.client, monitor, False)
    finally:
        monitor.close()
        server.close()


@contextmanager
def one_node() -> Iterator[RedisUnderTest]:
    with cluster(1, 0) as servers:
        [node] = servers.nodes
        monitor = Monitor(("127.0.0.1", node.port))
        try:
            yield RedisUnderTest(servers.url, node.client, monitor, True)
        finally:
            monitor.close()


@pytest.fixture(
    scope="module",
    params=[one_server, one_node],
    ids=lambda redis_under_test: redis_under_test.__name__,
)
def redis_under_test(request: Any) -> Iterator[RedisUnderTest]:
    with request.param() as found:
        yield found


@pytest.fixture(scope="module")
def site(
    redis_under_test: RedisUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RagProcesses]:
    """A gateway and a worker; all their commands are checked."""
    folder = tmp_path_factory.mktemp("home")
    common = {
        "redis_url": redis_under_test.url,
        "QUEUE_PARTITIONS": str(PARTITIONS),
        "SLUICE_DATA_DIR": str(folder / "data"),
        "WORKFLOW_WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
    }
    more = {
        "CONSUMER": "one", "BLOCK_MS": 50, "LEASE_MS": 2000, "HEARTBEAT_S": 0.3,
        "EMBEDDER": "off", "IMAGE_DETECTOR": "none", "AUDIT_EVERY_S": 0.5,
        "WORKFLOW_RECONCILE_S": 0.3, "IMAGE_RECONCILE_S": 0.3,
        "WORKFLOW_WEBHOOK_RETRY_BACKOFF_SECONDS": 0.1, "WORKFLOW_WEBHOOK_MAX_RETRIES": 1,
    }  # fmt: skip
    with (
        contextmanager(gateway_starter)(folder) as start_gateway,
        contextmanager(spawner)(folder) as spawn,
    ):
        gateway = start_gateway(**common)
        worker = spawn("worker", **common, **more)
        worker.wait_for_line("takes jobs")
        yield RagProcesses(gateway, spawn)
        redis_under_test.check()
        for log in (gateway.log, worker.log):
            assert "CROSSSLOT" not in log
            assert "Traceback" not in log


def send(
    site: RagProcesses, method: str, path: str, data: bytes = b"", kind: str = "", **headers: str
) -> tuple[int, bytes]:
    headers |= {"Content-Type": kind} if kind else {}
    answer = site.gateway.http.request(method, path, content=data, headers=headers)
    return answer.status_code, answer.content


def post(site: RagProcesses, path: str, body: object, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = site.gateway.http.post(path, json=body, headers=named)
    return answer.status_code, answer.json() if answer.content else None


def test_a_workflow_is_applied_and_undone(site: RagProcesses) -> None:
    site.add("manual", MANUAL)
    job_id = site.reviewed()
    site.execute(job_id, "apply")
    assert "DLQ" in site.terms()["dead letter queue"]
    assert site.found("DLQ") == ["Glossary", "Operations", "manual"]
    site.execute(job_id, "analytics")
    [about, *_] = site.items(job_id, "apply")
    status, undone = site.undo(job_id, about["payload"]["undo_token"])
    assert status == 200, undone
    assert site.terms() == {}
    assert site.found("DLQ") == []
    assert {item["status"] for item in site.items(job_id, "proposals")} == {"approved"}


def test_documents_are_added_and_deleted(site: RagProcesses) -> None:
    path = "/v1/rag/notes/documents"
    text = f"# Office\n\n{OTHER}".encode()
    status, raw = send(
        site, "POST", f"{path}?id=office.md", text, "text/markdown", Prefer="wait=30"
    )
    assert status == 201, raw
    site.add("manual", MANUAL)
    assert site.found("sunday") == ["Office"]
    status, listed = site.ask("GET", path)
    assert [each["id"] for each in listed["items"]] == ["manual", "office.md"], listed
    status, raw = send(site, "DELETE", f"{path}/office.md", Prefer="wait=30")
    assert status == 204, raw
    assert site.found("sunday") == []
    assert site.ask("GET", "/v1/rag")[1]["items"] == ["notes"]


def test_an_image_is_processed_and_deleted(site: RagProcesses) -> None:
    status, created = post(site, "/v1/images", {"metadata": {"a": "b"}})
    assert status == 201, created
    path = f"/v1/images/{created['image_id']}"
    status, raw = send(site, "PUT", f"{path}/upload", photo(size=(320, 240)), "image/jpeg")
    assert status == 202, raw

    def processed() -> bool:
        image = site.ask("GET", path)[1]
        assert image["status"] != "failed", image
        return bool(image["status"] == "processed")

    wait_until(processed, TIMEOUT_S)
    assert send(site, "GET", f"{path}/content")[0] == 200
    listed = site.ask("GET", "/v1/images")[1]["items"]
    assert created["image_id"] in [image["image_id"] for image in listed]
    assert send(site, "DELETE", path)[0] == 204
    assert site.ask("GET", path)[0] == 404


def test_an_undelivered_webhook_is_redriven(site: RagProcesses) -> None:
    status, created = post(site, "/api/workflow/jobs", {"webhook_url": unreachable_url()})
    assert status == 200, created
    dead_letters = "/api/workflow/webhooks/dlq"

    def dead_lettered() -> Any:
        return site.ask("GET", dead_letters)[1]["items"]

    [dead_letter] = wait_until(dead_lettered, TIMEOUT_S)
    status, sent = post(site, f"{dead_letters}/redrive", {"event_ids": [dead_letter["event_id"]]})
    assert status in (200, 202), sent
    job_id = created["job"]["job_id"]
    status, cancelled = post(site, f"/api/workflow/jobs/{job_id}/cancel", {})
    assert status == 200, cancelled


def test_keys_limits_and_sessions(site: RagProcesses) -> None:
    limited = {"name": "limited", "tenant": "acme", "rate_per_min": 600, "max_jobs": 20}
    status, created = post(site, "/v1/keys", limited)
    assert status == 201, created
    bearer = {"Authorization": f"Bearer {created['key']}"}
    chat = {"task": "chat", "payload": {"text": "hi"}}
    jobs = [post(site, "/v1/jobs", chat, **bearer) for _ in range(6)]
    assert {status for status, _ in jobs} == {202}
    assert post(site, "/api/workflow/jobs", {"auto_advance": True}, **bearer)[0] == 200
    status, image = post(site, "/v1/images", {}, **bearer)
    assert status == 201, image
    upload = f"/v1/images/{image['image_id']}/upload"
    assert send(site, "PUT", upload, photo(size=(64, 48)), "image/jpeg", **bearer)[0] == 202

    status, admin = post(site, "/v1/keys", {"name": "page", "scopes": ["admin"]})
    assert status == 201, admin
    page = {"X-Sluice-UI": "1", "Sec-Fetch-Site": "same-origin", "Origin": site.gateway.url}
    assert post(site, "/ui/session", {"key": admin["key"]}, **page)[0] == 200
    site.gateway.http.cookies.clear()
    assert site.ask("GET", "/v1/trail")[0] == 200
    for key in (created, admin):
        assert send(site, "DELETE", f"/v1/keys/{key['key_id']}")[0] == 204
    assert post(site, "/v1/jobs", chat, **bearer)[0] == 401


def test_statistics_and_status(site: RagProcesses, redis_under_test: RedisUnderTest) -> None:
    chat = {"task": "chat", "payload": {"text": "hi"}}
    assert {post(site, "/v1/jobs", chat, Idempotency_Key=f"k{n}")[0] for n in range(12)} == {202}
    for path in ("/v1/status", "/v1/queues", "/v1/workers", "/v1/jobs", "/v1/dlq", "/metrics"):
        assert send(site, "GET", path)[0] == 200, path
    assert send(site, "POST", "/v1/audit")[0] == 200
    # One gateway takes samples, and a worker runs the integrity check.
    wait_until(lambda: redis_under_test.client.exists("{0}:jobs:stream:stats:1s"), TIMEOUT_S)
    wait_until(lambda: redis_under_test.client.exists("{0}:jobs:stream:audit"), TIMEOUT_S)
