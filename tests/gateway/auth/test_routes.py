"""Every route of the gateway, with the answer to each kind of caller that must not get more.

`routes.txt` has a row for each route. A test fails as soon as a route has no row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from sluice.common.contracts.access import Scope
from sluice.common.contracts.images import Stage
from sluice.common.contracts.rag import RagKeys, namespaces_key
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.features.rag.ontology import TermEntry, term_key
from sluice.common.features.workflows.types import NewItem
from sluice.common.observability.heartbeats import Heartbeat, RunningJob
from sluice.gateway.auth.permissions import PERMISSIONS
from tests.support.gateway.access import bearer, id_of, key_for, post
from tests.support.gateway.asgi import Answer
from tests.support.gateway.bullmq import QUEUES, QueueApi
from tests.support.gateway.dashboard import PAGE, SESSION, Browser
from tests.support.gateway.dead_letters import dead
from tests.support.gateway.harness import CHAT, Gateway, Make
from tests.support.gateway.images import Images
from tests.support.gateway.workflows import Workflows

#: fakeredis has no `cmsgpack`, which the scripts of BullMQ need.
pytestmark = pytest.mark.real_redis

TABLE = Path(__file__).with_name("routes.txt")
TENANT, OTHER_TENANT = "shop", "bakery"
#: Part of everything that the tenant stores.
SECRET = "s3cret-of-the-shop"
TOKENS = "/v1/tokens"
SCOPES = tuple(scope.value for scope in Scope)
CROSS_SITE = {"origin": "https://other.example", "sec-fetch-site": "cross-site"}
QUERIES = {"/v1/rag/{ns}/search": "?q=office", "/v1/images/events": "?image_ids={image_id}"}
#: Valid bodies of the requests that need one; without one, the OpenAI API does not wait for a job.
BODIES: dict[tuple[str, str], object] = {
    ("POST", "/v1/jobs"): CHAT,
    ("POST", SESSION): {"key": "sluice_unknown"},
    ("POST", "/v1/rag/{ns}/documents"): {"id": "note", "text": "Closed on Sunday."},
    ("POST", "/v1/bullmq/{queue}/jobs"): {"name": "render"},
    ("POST", "/v1/keys"): {"name": "another"},
    ("POST", TOKENS): {"job_id": "x"},
    ("POST", "/api/workflow/jobs"): {},
    ("POST", "/api/workflow/jobs/{job_id}/proposals/bulk"): {
        "action": "approve",
        "proposal_ids": [1],
    },
    ("PATCH", "/api/workflow/jobs/{job_id}/proposals/{proposal_id}/ontology"): {
        "to": "x",
        "version": 1,
    },
    ("POST", "/api/workflow/jobs/{job_id}/steps/{step_name}/execute"): {"wait_s": 0},
    ("POST", "/api/workflow/jobs/{job_id}/undo"): {"undo_token": "undo_p_002"},
}


class Row(NamedTuple):
    """A line of the table. Its first lines explain the columns."""

    method: str
    path: str
    no_key: str
    scopes: str
    tenant: str
    session: str
    cross_site: str

    @property
    def is_public(self) -> bool:
        return self.scopes == "public"

    def allows(self, *held: str) -> bool:
        """True if a key with these scopes may send the request."""
        if self.is_public or self.scopes == "any" or Scope.ADMIN in held:
            return True
        if "+" in self.scopes:
            return set(self.scopes.split("+")) <= set(held)
        return not set(self.scopes.split("|")).isdisjoint(held)


def read_table() -> list[Row]:
    found = []
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            methods, *rest = line.split()
            found += [Row(method, *rest) for method in methods.split(",")]
    return found


ROWS = read_table()


def routes_of(app: Any) -> list[tuple[str, str]]:
    """Method and path of every route."""
    found = []
    for route in app.routes:
        assert isinstance(route, (APIRoute, Route)), f"{route} is of an unknown type"
        found += [(method, route.path) for method in route.methods or ()]
    return sorted(found)


@dataclass(frozen=True)
class Stored:
    """What a tenant has stored: values for the parameters of paths, by the start of the path."""

    parameters: dict[str, str]
    job_id: str
    workflow_job_id: str

    def target(self, row: Row) -> str:
        job_id = self.workflow_job_id if row.path.startswith("/api") else self.job_id
        path = row.path.replace(":path}", "}") + QUERIES.get(row.path, "")
        name = "app.js" if "static" in path else "jobs:stream"
        return path.format(**self.parameters, job_id=job_id, name=name)

    def hidden_in(self, target: str) -> list[bytes]:
        """What no answer to another tenant may have; a request may name ids itself."""
        ids = (self.job_id, self.workflow_job_id, *self.parameters.values())
        named = [each for each in ids if len(each) > 6 and each not in target]
        return [text.encode() for text in (SECRET, *named)]


async def fill(gateway: Gateway, key: str) -> Stored:
    """Store something of every kind as a tenant."""
    secret = json.dumps({"text": SECRET})
    chat = {"task": "chat", "payload": {"text": SECRET}}
    job_id = (await post(gateway, key, chat, idempotency_key="same")).json()["job_id"]
    await gateway.emit(job_id, "token", {"text": SECRET})
    await gateway.finish(job_id)
    await gateway.redis.hset(gateway.keys_of(job_id).job(job_id), "result", secret)
    running = [RunningJob(job_id=job_id, task="chat", attempt=1, since_ms=1)]
    await gateway.heartbeat(Heartbeat(consumer="w1", seen_ms=1, in_flight=1, running=running))
    rag = RagKeys("shelf", TENANT)
    record = DocumentRecord("doc-of-shop", SECRET, "text/plain", 14, 1, "ab", "r1", 5)
    await gateway.redis.hset(rag.documents, record.id, record.to_json())
    await gateway.redis.set(rag.text(record.id), SECRET)
    await gateway.redis.zadd(rag.order, {record.id: 1})
    await gateway.redis.sadd(namespaces_key(TENANT), "shelf")
    await gateway.redis.hset(rag.ontology, term_key(SECRET), TermEntry(SECRET).to_json())
    images = Images(gateway)
    image_id = await images.create({"filename": f"{SECRET}.png"}, **bearer(key))
    assert (await images.upload(image_id, headers=bearer(key))).status == 202
    for stage in (Stage.VALIDATING, Stage.DECODING):
        await images.advance(image_id, stage)
    await images.succeed(image_id, SECRET.encode())
    queue = QueueApi(gateway)
    added = await queue.post({"name": "render", "data": {"text": SECRET}}, bearer(key))
    workflows = Workflows(gateway)
    workflow_job_id = await workflows.create_job({"metadata": {"for": SECRET}}, **bearer(key))
    things = [NewItem(json.dumps({"from": f"{SECRET} {n}", "to": "x"}).encode()) for n in range(2)]
    for step in ("sources", "index_extract", "summarize"):
        await workflows.run(workflow_job_id, step, things, SECRET)
    proposed = [each._replace(status="proposed", confidence=0.5) for each in things]
    await workflows.run(workflow_job_id, "proposals", proposed, SECRET)
    parameters = {
        "model": "any",
        "letter_id": await dead(gateway, payload={"text": SECRET}),
        "ns": "shelf",
        "document_id": record.id,
        "image_id": image_id,
        "queue": QUEUES[0],
        "id": added.json()["id"],
        "key_id": id_of(key),
        "proposal_id": "1",
        "step_name": "review",
        "path": "jobs",
    }
    return Stored(parameters, job_id, workflow_job_id)


@pytest.fixture
async def strict_and_local(make: Make, tmp_path: Path) -> tuple[Gateway, Gateway]:
    """Two gateways with all features on one Redis; the first one requires keys."""
    options = {"sluice_data_dir": str(tmp_path), "max_wait_s": 0.05}
    options["bullmq_add_queues"] = ",".join(QUEUES)
    return make(auth="required", **options), make(**options)


async def ask(
    gateway: Gateway,
    row: Row,
    target: str,
    headers: dict[str, str],
    stored: Stored | None = None,
) -> Answer:
    """The response; of a stream that stays open, its first event."""
    body = BODIES.get((row.method, row.path))
    if row.path == TOKENS and stored is not None:
        body = {"job_id": stored.job_id}
    exchange = await gateway.client.request(row.method, target, headers, body).start()
    if exchange.status == 200 and row.method == "GET" and is_stream(exchange.header):
        text = repr(await exchange.next()).encode()
        if not exchange.task.done():
            await exchange.hang_up()
    else:
        text = await exchange.body()
    return Answer(exchange.status, exchange.headers, text)


def is_stream(header: Any) -> bool:
    return (header("content-type") or "").startswith("text/event-stream")


def outcome_of(row: Row, answer: Answer) -> str:
    """Status and problem code, as in the table."""
    if answer.status < 400:
        return str(answer.status)
    if not answer.body:
        assert row.method == "HEAD"
        return f"{answer.status}:?"
    body = answer.json()
    if "error" in body:  # OpenAI
        return f"{answer.status}:{body['error']['code']}"
    if "success" in body:  # workflows
        return f"{answer.status}:{body['errors'][0]['code']}"
    return f"{answer.status}:{body['code']}"


class Differences:
    """Collects the answers that differ from the table."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def compare(self, row: Row, expected: str, answer: Answer, caller: str) -> None:
        outcome = outcome_of(row, answer)
        if outcome.endswith(":?"):
            expected = f"{expected[:3]}:?"
        if outcome != expected:
            self.found.append(f"{row.method} {row.path}, {caller}: {outcome}, not {expected}")

    def check(self) -> None:
        assert not self.found, "\n".join(["answers differ from routes.txt:", *self.found])


def test_every_route_has_one_row(strict_and_local: tuple[Gateway, Gateway]) -> None:
    in_table = sorted((row.method, row.path) for row in ROWS)
    assert in_table == routes_of(strict_and_local[0].app), "add the route to routes.txt"


async def test_requests_without_a_key(strict_and_local: tuple[Gateway, Gateway]) -> None:
    gateway, _ = strict_and_local
    differences = Differences()
    stored = await fill(gateway, await key_for(gateway, tenant=TENANT))
    before = await gateway.snapshot()
    for row in ROWS:
        target = stored.target(row)
        answer = await ask(gateway, row, target, {})
        differences.compare(row, row.no_key, answer, "without a key")
        assert SECRET.encode() not in answer.body
    differences.check()
    assert await gateway.snapshot() == before


async def test_keys_with_other_scopes(strict_and_local: tuple[Gateway, Gateway]) -> None:
    gateway, _ = strict_and_local
    differences = Differences()
    stored = await fill(gateway, await key_for(gateway, tenant=TENANT))
    keys = {scope: await key_for(gateway, scopes=(scope,)) for scope in SCOPES}
    before = await gateway.snapshot()
    for row in ROWS:
        for scope, key in keys.items():
            if row.allows(scope):
                continue
            answer = await ask(gateway, row, stored.target(row), bearer(key), stored)
            differences.compare(row, "403:insufficient_scope", answer, scope)
            assert SECRET.encode() not in answer.body
            challenge = answer.header("www-authenticate") or ""
            assert 'error="insufficient_scope"' in challenge
            assert all(part in challenge for part in row.scopes.replace("+", "|").split("|"))
    differences.check()
    assert await gateway.snapshot() == before


async def test_keys_with_the_needed_scopes(strict_and_local: tuple[Gateway, Gateway]) -> None:
    """Requests about things that do not exist, because some of them change a lot."""
    gateway, _ = strict_and_local
    for row in ROWS:
        path = row.path.replace("{", "x").replace("}", "x").replace(":path", "")
        enough = [(Scope.ADMIN.value,)]
        if "+" in row.scopes:
            enough.append(tuple(row.scopes.split("+")))
        else:
            enough += [(scope,) for scope in SCOPES if row.allows(scope)]
        for scopes in enough:
            key = await key_for(gateway, scopes=scopes)
            exchange = await gateway.client.begin(row.method, path, bearer(key)).start()
            expected = (401, 403) if row.path != SESSION else (401,)
            assert exchange.status not in expected, (row, scopes)
            await exchange.abandon()


async def test_keys_of_another_tenant(strict_and_local: tuple[Gateway, Gateway]) -> None:
    gateway, _ = strict_and_local
    differences = Differences()
    stored = await fill(gateway, await key_for(gateway, tenant=TENANT))
    usual = tuple(scope for scope in SCOPES if scope != Scope.ADMIN)
    other = await key_for(gateway, tenant=OTHER_TENANT, scopes=usual)
    for row in ROWS:
        target = stored.target(row)
        before = await gateway.snapshot()
        again = {"idempotency_key": "same"} if row.path == "/v1/jobs" else {}
        headers = bearer(other, **again)
        answer = await ask(gateway, row, target, headers)
        differences.compare(row, row.tenant, answer, "other tenant")
        sent = answer.body + repr(answer.headers).encode()
        assert not [text for text in stored.hidden_in(target) if text in sent], row
        if answer.status >= 400:
            assert await gateway.snapshot() == before, row
    differences.check()


async def test_read_only_dashboard_sessions(strict_and_local: tuple[Gateway, Gateway]) -> None:
    gateway, _ = strict_and_local
    differences = Differences()
    stored = await fill(gateway, await key_for(gateway, tenant=TENANT))
    browser = Browser(gateway)
    await browser.sign_in(await key_for(gateway, scopes=("admin",)))
    headers = {**PAGE, "cookie": f"sluice_session={browser.cookie}"}
    before = await gateway.snapshot()
    for row in ROWS:
        if row.path != SESSION:
            answer = await ask(gateway, row, stored.target(row), headers, stored)
            differences.compare(row, row.session, answer, "read-only session")
    assert await gateway.snapshot() == before
    for row in ROWS:
        if row.path == SESSION:
            answer = await ask(gateway, row, row.path, headers)
            differences.compare(row, row.session, answer, "read-only session")
    differences.check()


async def test_pages_of_other_origins(strict_and_local: tuple[Gateway, Gateway]) -> None:
    """The browser of a local operator sends what any page asks it to, without a key."""
    gateway, local = strict_and_local
    differences = Differences()
    stored = await fill(gateway, await key_for(gateway, tenant=TENANT))
    before = await local.snapshot()
    for row in ROWS:
        for headers in (CROSS_SITE, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
            answer = await ask(local, row, stored.target(row), headers, stored)
            differences.compare(row, row.cross_site, answer, f"{headers}")
            assert not [name for name, _ in answer.headers if name.startswith("access-control")]
            assert answer.header("cross-origin-resource-policy") == "same-origin"
    differences.check()
    assert await local.snapshot() == before


def test_every_permission_belongs_to_a_route() -> None:
    declared = {("GET" if row.method == "HEAD" else row.method, row.path) for row in ROWS}
    assert PERMISSIONS.keys() == declared
