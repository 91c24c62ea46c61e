"""What there is one of, with the jobs in four partitions: workflows, documents, images, API keys,
webhooks, statistics. Each key lies under a partition's tag, and each command keeps to one.

The Cluster here is one node: it refuses what spans slots as any other does, and hears everything.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from common.contracts.jobs import JobKeys
from tests.gateway.processes import PYTHON_M, GatewayProcess
from tests.process.test_workflow_rag import MANUAL, OTHER, Site
from tests.process.test_workflow_webhooks import nobodys_url
from tests.support.backends import SYSTEM, RealServer, require_binary
from tests.topologies import cluster
from tests.worker.features.images.kit import photo
from tests.worker.processes import spawner, wait_until

pytestmark = pytest.mark.process

PARTITIONS = 4
PATIENCE_S = 60.0
_TAG = re.compile(rb"\{[0-3]\}:")
_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_UNDIVIDED = (b"GET", JobKeys().schema.encode())
#: What we or the test's own client say of no key.
_KEYLESS = ("The command has no key arguments", "Invalid arguments specified")


class Ear:
    """Hears every command that a server is given, scripts' own among them."""

    def __init__(self, address: tuple[str, int] | str) -> None:
        kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self._socket = socket.socket(kind, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._lines = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._lines.readline() == b"+OK\r\n"
        self.heard: set[tuple[bytes, ...]] = set()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := self._lines.readline():
                _, _, said = line.partition(b"] ")
                self.heard.add(tuple(_ARGUMENT.findall(said)))

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be deaf already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._lines.close()
        self._socket.close()


@dataclass
class Place:
    """A Redis, how processes find it, and what it is told."""

    url: str
    client: redis.Redis
    ear: Ear
    is_cluster: bool

    def check(self) -> None:
        """Everything has a tag; on a Cluster no command has two."""
        names: Any = self.client.keys("*")
        assert names
        assert [name for name in names if not _TAG.match(name)] == []
        self.ear.close()
        assert len(self.ear.heard) > 100
        # A single server is asked at start whether others keep jobs there undivided.
        heard = self.ear.heard - (set() if self.is_cluster else {_UNDIVIDED})
        for command in heard:
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


@contextlib.contextmanager
def one_server() -> Iterator[Place]:
    server = RealServer(require_binary(SYSTEM))
    ear = Ear(str(server.dir / "s"))
    try:
        yield Place(server.url, server.client, ear, False)
    finally:
        ear.close()
        server.close()


@contextlib.contextmanager
def one_node() -> Iterator[Place]:
    with cluster(1, 0) as servers:
        [node] = servers.nodes
        ear = Ear(("127.0.0.1", node.port))
        try:
            yield Place(servers.url, node.client, ear, True)
        finally:
            ear.close()


@pytest.fixture(scope="module", params=[one_server, one_node], ids=lambda place: place.__name__)
def place(request: Any) -> Iterator[Place]:
    with request.param() as found:
        yield found


@pytest.fixture(scope="module")
def site(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway and a worker; whatever tests have them do, they do where it belongs."""
    folder = tmp_path_factory.mktemp("home")
    common = {
        "REDIS_URL": place.url,
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
    gateway = GatewayProcess(PYTHON_M, folder / "gateway.log", PORT="0", **common)
    with contextlib.contextmanager(spawner)(folder) as spawn:
        try:
            worker = spawn("worker", **common, **more)
            worker.wait_for_line("takes jobs", PATIENCE_S)
            yield Site(f"http://127.0.0.1:{gateway.wait_until_listening().port}", spawn)
            place.check()
            for log in (gateway.log, worker.log):
                assert "CROSSSLOT" not in log
                assert "Traceback" not in log
        finally:
            gateway.close()


def send(
    site: Site, method: str, path: str, data: bytes = b"", kind: str = "", **headers: str
) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"Content-Type": kind} if kind else {}
    request = urllib.request.Request(f"{site.url}{path}", data or None, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def post(site: Site, path: str, body: object, **headers: str) -> tuple[int, Any]:
    status, answer = send(
        site, "POST", path, json.dumps(body).encode(), "application/json", **headers
    )
    return status, json.loads(answer or b"null")


def test_a_workflow_with_documents_and_terms_is_applied_and_undone(site: Site) -> None:
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


def test_documents_come_and_go(site: Site) -> None:
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


def test_an_image_comes_and_goes(site: Site) -> None:
    status, made = post(site, "/v1/images", {"metadata": {"a": "b"}})
    assert status == 201, made
    path = f"/v1/images/{made['image_id']}"
    status, raw = send(site, "PUT", f"{path}/upload", photo(size=(320, 240)), "image/jpeg")
    assert status == 202, raw

    def processed() -> bool:
        image = site.ask("GET", path)[1]
        assert image["status"] != "failed", image
        return bool(image["status"] == "processed")

    wait_until(processed, PATIENCE_S)
    assert send(site, "GET", f"{path}/content")[0] == 200
    listed = site.ask("GET", "/v1/images")[1]["items"]
    assert made["image_id"] in [image["image_id"] for image in listed]
    assert send(site, "DELETE", path)[0] == 204
    assert site.ask("GET", path)[0] == 404


def test_a_webhook_that_nobody_hears_is_given_up_and_sent_again(site: Site) -> None:
    status, made = post(site, "/api/workflow/jobs", {"webhook_url": nobodys_url()})
    assert status == 200, made
    letters = "/api/workflow/webhooks/dlq"

    def given_up() -> Any:
        return site.ask("GET", letters)[1]["items"]

    [letter] = wait_until(given_up, PATIENCE_S)
    status, sent = post(site, f"{letters}/redrive", {"event_ids": [letter["event_id"]]})
    assert status in (200, 202), sent
    job_id = made["job"]["job_id"]
    status, cancelled = post(site, f"/api/workflow/jobs/{job_id}/cancel", {})
    assert status == 200, cancelled


def test_keys_limits_and_sessions(site: Site) -> None:
    limited = {"name": "limited", "tenant": "acme", "rate_per_min": 600, "max_jobs": 20}
    status, made = post(site, "/v1/keys", limited)
    assert status == 201, made
    bearer = {"Authorization": f"Bearer {made['key']}"}
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
    page = {"X-Sluice-UI": "1", "Sec-Fetch-Site": "same-origin", "Origin": site.url}
    assert post(site, "/ui/session", {"key": admin["key"]}, **page)[0] == 200
    assert site.ask("GET", "/v1/trail")[0] == 200
    for key in (made, admin):
        assert send(site, "DELETE", f"/v1/keys/{key['key_id']}")[0] == 204
    assert post(site, "/v1/jobs", chat, **bearer)[0] == 401


def test_what_there_is_to_see(site: Site, place: Place) -> None:
    chat = {"task": "chat", "payload": {"text": "hi"}}
    assert {post(site, "/v1/jobs", chat, Idempotency_Key=f"k{n}")[0] for n in range(12)} == {202}
    for path in ("/v1/status", "/v1/queues", "/v1/workers", "/v1/jobs", "/v1/dlq", "/metrics"):
        assert send(site, "GET", path)[0] == 200, path
    assert send(site, "POST", "/v1/audit")[0] == 200
    # One gateway takes samples, and a worker audits.
    wait_until(lambda: place.client.exists("{0}:jobs:stream:stats:1s"), PATIENCE_S)
    wait_until(lambda: place.client.exists("{0}:jobs:stream:audit"), PATIENCE_S)
