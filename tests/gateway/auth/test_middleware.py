"""Authentication and authorisation: when keys are required, scopes, and the cost of lookups."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from sluice.common.access.key_format import generate_key, key_digest
from sluice.common.access.record import AccessRecord, KeySpec
from sluice.common.access.store import KeyStore
from sluice.common.contracts.access import Scope
from sluice.common.errors import SettingsError, StoreUnavailable
from sluice.common.observability.logs import TextFormatter
from sluice.common.process.host import is_loopback
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import create_app
from sluice.gateway.auth import callers as callers_module
from sluice.gateway.auth.callers import Callers
from sluice.gateway.auth.middleware import keys_required
from sluice.gateway.auth.permissions import (
    ADMIN,
    ADMIN_READ,
    ANY_KEY,
    METRICS,
    PERMISSIONS,
    PUBLIC,
    READ,
    SEARCH,
    STATUS,
    SUBMIT_AND_READ,
    WRITE,
    Permission,
    permission_for,
)
from sluice.gateway.http.paths import is_openai, is_workflow
from tests.gateway.http.test_routing import WithoutFastPath
from tests.support.gateway.access import bearer, call, client_at, id_of, key_for, post
from tests.support.gateway.asgi import JSON, Client
from tests.support.gateway.dashboard import PAGE, SESSION
from tests.support.gateway.faults import raising
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem
from tests.support.gateway.workflows import check_envelope
from tests.support.servers import Backend
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

#: An endpoint for each scope.
ENDPOINTS = {
    Scope.JOBS_WRITE: ("POST", "/v1/jobs"),
    Scope.JOBS_READ: ("GET", "/v1/jobs/x"),
    Scope.METRICS: ("GET", "/metrics"),
    Scope.ADMIN: ("GET", "/v1/keys"),
}


# -- when keys are required ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")],
        ("::ffff:127.0.0.1", True),
        *[(host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "box.example", "")],
        ("::ffff:192.0.2.1", False),
    ],
)
def test_loopback_addresses_need_no_key(host: str, local: bool) -> None:
    assert is_loopback(host) is local
    assert keys_required(GatewaySettings(host=host)) is not local
    assert keys_required(GatewaySettings(host=host, auth="required"))
    if local:
        assert not keys_required(GatewaySettings(host=host, auth="off"))
    else:
        with pytest.raises(SettingsError, match=r"AUTH=off.*HOST"):
            keys_required(GatewaySettings(host=host, auth="off"))


def test_inherited_socket_requires_keys() -> None:
    assert keys_required(GatewaySettings(), beyond_loopback=True)
    with pytest.raises(SettingsError, match="inherited socket"):
        create_app(GatewaySettings(auth="off"), beyond_loopback=True)


@pytest.mark.parametrize("auth", ["auto", "off"])
async def test_local_end_of_the_connection_decides(make: Make, auth: str) -> None:
    gateway = make(auth=auth)
    key = await key_for(gateway)
    servers: list[tuple[Any, bool]] = [
        (("127.0.0.1", 8080), False),
        (("::1", 8080), False),
        (("/run/sluice/gateway.sock", None), False),
        (("192.0.2.9", 8080), True),
        (("::ffff:192.0.2.9", 8080), True),
        (None, True),
    ]
    for server, needed in servers:
        client = client_at(gateway, server)
        answer = await client.post(CHAT)
        if needed:
            check_problem(answer, 401, "key_required")
            assert (await client.post(CHAT, bearer(key))).status == 202
        else:
            assert answer.status == 202, server
        assert (await client.get("/healthz")).status == 200


PROXY_HEADERS = (
    *("forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host"),
    *("x-forwarded-proto", "x-forwarded-anything"),
)


async def test_a_forwarded_request_without_a_key_is_not_the_operators(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    gateway = make()
    send, key = gateway.client.send, await key_for(gateway)
    for name in PROXY_HEADERS:
        headers = {name: "203.0.113.9"}
        for method, path in (("GET", "/v1/keys"), ("POST", "/v1/jobs"), ("GET", "/v1/models")):
            answer = await send(method, path, headers, CHAT if method == "POST" else None)
            assert answer.status == 401, (name, path)
            assert name.title() in answer.body.decode()
        assert (await send("GET", "/v1/whoami", {**headers, **bearer(key)})).status == 200
        for path in ("/healthz", "/readyz", "/ui"):
            assert (await send("GET", path, headers)).status == 200
        assert (await send("GET", SESSION, headers)).json()["scopes"] == []
    placeholder = {"x-forwarded-for": "203.0.113.9", "authorization": "Bearer sk-none"}
    assert (await send("GET", "/v1/models", placeholder)).status == 401
    for name in ("viaduct", "x-forward", "forwarded-by", "x-request-id", "from", "x-real-ipv6"):
        assert (await send("GET", "/v1/keys", {name: "x"})).status == 200
    assert await gateway.redis.xlen("jobs:stream") == 0


async def test_settings_may_announce_a_proxy(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    forwarded = {"x-forwarded-for": "203.0.113.9"}
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    assert (await make(auth="off").client.get("/v1/keys", forwarded)).status == 200
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    assert (await make().client.get("/v1/keys", forwarded)).status == 200
    assert (await make(auth="required").client.get("/v1/keys", forwarded)).status == 401


# -- keys ------------------------------------------------------------------------------------------


async def test_request_without_key_is_rejected(strict: Gateway) -> None:
    before = await strict.snapshot()
    exchange = strict.client.begin("POST", "/v1/jobs", {}, [b"x"] * 3)
    answer = await exchange.answer()
    check_problem(answer, 401, "key_required")
    assert len(exchange._chunks) == 3, "the body is not read before authentication"
    assert answer.header("www-authenticate") == 'Bearer realm="sluice"'
    assert await strict.snapshot() == before
    key = await key_for(strict, scopes=("ui",))
    assert (await call(strict, "GET", "/v1/whoami", key)).status == 200


@pytest.mark.parametrize("auth", ["auto", "required"])
async def test_invalid_key_is_rejected_even_on_loopback(make: Make, auth: str) -> None:
    gateway = make(auth=auth)
    key = await key_for(gateway)
    for header in (
        *(f"Bearer {key[:-1]}", f"Bearer {key}x", f"Bearer {key} {key}", f"Basic {key}", key),
        *("Bearer", "", f"Bearer {generate_key('aaaaaaaa')}", f"Bearer {generate_key(id_of(key))}"),
        *("Bearer \xff\xfe", "Bearer " + "x" * 20_000),
    ):
        answer = await gateway.client.post(CHAT, {"authorization": header})
        problem = check_problem(answer, 401, "invalid_key")
        assert answer.header("www-authenticate") == 'Bearer realm="sluice", error="invalid_token"'
        assert key not in json.dumps(problem)
    twice = [("authorization", f"Bearer {key}")] * 2
    answer = await gateway.client.send("GET", "/v1/whoami", twice)
    check_problem(answer, 401, "invalid_key")
    assert await gateway.redis.xlen(gateway.keys.queue) == 0
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers = {"authorization": f"{scheme} {key}"}
        assert (await gateway.client.get("/v1/whoami", headers)).status == 200


async def test_expired_and_revoked_keys_are_rejected(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a second, even if another process revoked the key."""
    now = 1000.0
    monkeypatch.setattr(strict.state.access.callers, "_clock", lambda: now)
    expired, revoked = [await key_for(strict, expires_s=3600.0) for _ in range(2)]
    for key in (expired, revoked):
        assert (await post(strict, key)).status == 202
    records = strict.state.access.keys.keys.records
    stored = json.loads(await strict.redis.hget(records, id_of(expired)) or b"")
    changed = json.dumps({**stored, "expires_ms": 1})
    await strict.redis.hset(records, id_of(expired), changed)
    await strict.state.access.keys.revoke(id_of(revoked))
    now += callers_module.CACHE_TTL_S
    for key in (expired, revoked):
        check_problem(await post(strict, key), 401, "invalid_key")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_waiting_request_gets_no_result_after_revocation(
    strict: Gateway, monkeypatch: Any, method: str
) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 0.0)
    key = await key_for(strict, tenant="shop")
    job_id = (await post(strict, key, idempotency_key="k")).json()["job_id"]
    headers = bearer(key, prefer="wait=20", idempotency_key="k")
    target, body = (f"/v1/jobs/{job_id}", None) if method == "GET" else ("/v1/jobs", CHAT)
    waiting = strict.client.request(method, target, headers, body)
    await eventually(lambda: strict.hub.clients)
    await strict.state.access.keys.revoke(id_of(key))
    await strict.finish(job_id)
    answer = await waiting.answer()
    assert b"result" not in answer.body
    assert answer.status == (401 if method == "GET" else 202)


# -- scopes ----------------------------------------------------------------------------------------


def routes_of(app: Any) -> list[tuple[str, str]]:
    """Method and path of every route."""
    found = []
    for route in app.routes:
        assert isinstance(route, (APIRoute, Route)), f"{route} is of an unknown type"
        methods = sorted(set(route.methods or ()) - {"HEAD"})
        found += [(method, route.path) for method in methods]
    return found


def test_every_route_has_a_permission_and_other_paths_need_admin(strict: Gateway) -> None:
    for method, path in routes_of(strict.app):
        assert (method, path) in PERMISSIONS, f"add {method} {path} to gateway/auth/permissions.py"
        named = path.replace("{", "").replace("}", "")
        assert permission_for(method, named) == PERMISSIONS[method, path]
    for method, path in (
        *(("DELETE", "/v1/models/a/b"), ("GET", "/v1/models/"), ("OPTIONS", "/v1/jobs")),
        *(("GET", "/v2/jobs"), ("GET", "/uix"), ("POST", "/ui"), ("DELETE", "/ui/jobs")),
        *(("POST", "/ui/session/"), ("PUT", "/v1/jobs"), ("POST", "/v1/jobs/"), ("GET", "")),
        *(("GET", "/v1/jobs//events"), ("GET", "/v1/jobs/x/events/"), ("GET", "/V1/jobs/x")),
        *(("GET", "/healthz/"), ("POST", "/healthz"), ("GET", "//healthz")),
    ):
        assert permission_for(method, path) is ADMIN, (method, path)


#: Permissions of routes where reading needs another one than READ, or a change another than WRITE.
OTHER_PERMISSIONS: dict[Permission, str] = {
    PUBLIC: """GET /healthz, GET /readyz, GET /, GET /ui, GET /ui/{path:path},
        GET /ui/static/{name:path}, GET /ui/session, POST /ui/session, DELETE /ui/session""",
    ANY_KEY: """GET /openapi.json, GET /docs, GET /v1/whoami, GET /v1/models,
        GET /v1/models/{model:path}, GET /v1/tools""",
    SEARCH: "GET /v1/rag/{ns}/search, POST /v1/tokens",
    METRICS: "GET /metrics, GET /v1/workers, GET /v1/stats, GET /v1/queues",
    STATUS: "GET /v1/status, GET /v1/stream",
    SUBMIT_AND_READ: """POST /v1/chat/completions, POST /v1/embeddings,
        POST /api/workflow/jobs/{job_id}/proposals/bulk, POST /api/workflow/jobs/{job_id}/undo,
        PATCH /api/workflow/jobs/{job_id}/proposals/{proposal_id}/ontology""",
    ADMIN_READ: """GET /v1/dlq, GET /v1/dlq/groups, GET /v1/dlq/{letter_id}, GET /v1/audit,
        GET /v1/trail, GET /api/workflow/webhooks/dlq""",
    ADMIN: """POST /v1/queues/{name}/pause, POST /v1/queues/{name}/resume, DELETE /v1/dlq,
        POST /v1/dlq/redrive, DELETE /v1/dlq/{letter_id}, POST /v1/dlq/{letter_id}/redrive,
        POST /v1/audit, GET /v1/keys, POST /v1/keys, GET /v1/keys/{key_id},
        DELETE /v1/keys/{key_id}, POST /v1/keys/{key_id}/rotate,
        GET /api/workflow/webhooks/deliveries, POST /api/workflow/webhooks/dlq/redrive""",
}


def test_reads_and_changes_need_their_scopes() -> None:
    others = {
        tuple(route.split()): permission
        for permission, routes in OTHER_PERMISSIONS.items()
        for route in routes.split(",")
    }
    assert others.keys() <= PERMISSIONS.keys()
    for (method, path), permission in PERMISSIONS.items():
        usual = READ if method == "GET" else WRITE
        assert permission is others.get((method, path), usual), (method, path)
        if method == "GET":
            assert permission_for("HEAD", path.replace("{", "").replace("}", "")) is permission
    assert (READ.scopes, METRICS.scopes) == ({"jobs:read", "ui"}, {"metrics", "ui"})
    assert (SEARCH.scopes, WRITE.scopes, ADMIN.scopes) == ({"jobs:read"}, {"jobs:write"}, {"admin"})
    assert STATUS.scopes == {"metrics", "ui", "jobs:read"}
    assert ADMIN_READ.scopes == {"admin", "ui"}
    assert ADMIN_READ.allows(frozenset({"ui"}))
    assert not ADMIN_READ.allows(frozenset({"ui"}), sees_all=False)
    assert ADMIN_READ.allows(frozenset({"admin"}), sees_all=False)
    assert SUBMIT_AND_READ.allows(frozenset({"jobs:read", "jobs:write", "ui"}))
    assert not SUBMIT_AND_READ.allows(frozenset({"jobs:write", "ui"}))


async def test_every_route_requires_a_key(strict: Gateway) -> None:
    for method, path in routes_of(strict.app):
        answer = await call(strict, method, path.replace("{", "x").replace("}", "x"))
        if PERMISSIONS[method, path] is PUBLIC:
            assert answer.status != 401
        elif is_openai(path):
            assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        elif is_workflow(path):
            check_envelope(answer, 401, "key_required")
        else:
            check_problem(answer, 401, "key_required")


@pytest.mark.parametrize("scope", list(ENDPOINTS))
async def test_scope_permits_only_its_endpoints(strict: Gateway, scope: Scope) -> None:
    key = await key_for(strict, scopes=(scope.value,))
    for needed, (method, path) in ENDPOINTS.items():
        answer = await call(strict, method, path, key)
        if scope in (needed, Scope.ADMIN):
            assert answer.status not in (401, 403)
        else:
            check_problem(answer, 403, "insufficient_scope")
            challenge = answer.header("www-authenticate") or ""
            assert 'error="insufficient_scope"' in challenge
            assert needed.value in challenge


async def test_key_without_read_scope_does_not_wait(strict: Gateway) -> None:
    """`Prefer` is optional; honouring it would return the job."""
    key = await key_for(strict, scopes=("jobs:write",))
    answer = await post(strict, key, prefer="wait=60")
    assert answer.status == 202
    assert answer.header("preference-applied") is None


async def test_key_is_limited_to_its_tasks(strict: Gateway) -> None:
    key = await key_for(strict, tasks=("embed", "rag"))
    before = await strict.snapshot()
    problem = check_problem(await post(strict, key), 403, "task_not_allowed")
    assert "embed, rag" in problem["detail"]
    assert await strict.snapshot() == before
    assert (await post(strict, key, {**CHAT, "task": "rag"})).status == 202


async def test_fast_path_and_fastapi_have_the_same_checks(strict: Gateway) -> None:
    slow_path = Client(WithoutFastPath(strict.app))
    key = await key_for(strict, scopes=("jobs:read",))
    for headers in ({}, bearer(key), bearer(key[:-1])):
        by_fast_path = await strict.client.post(CHAT, headers)
        by_fastapi = await slow_path.post(CHAT, headers)
        assert by_fast_path.status == by_fastapi.status in (401, 403)
        assert by_fast_path.json()["code"] == by_fastapi.json()["code"]


# -- cost ------------------------------------------------------------------------------------------


class CountingKeyStore(KeyStore):
    """Counts reads of Redis; can be blocked or made unreachable."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.reads: list[list[str]] = []
        self.free = asyncio.Event()
        self.free.set()
        self.unreachable = False
        self.uses: list[str] = []

    async def find(self, key_ids: Any) -> list[AccessRecord | None]:
        self.reads.append(list(key_ids))
        await self.free.wait()
        if self.unreachable:
            raise StoreUnavailable("away")
        return await super().find(key_ids)

    async def record_use(self, key_id: str, now_ms: int) -> None:
        self.uses.append(key_id)


@pytest.fixture
def counting(backend: Backend) -> CountingKeyStore:
    return CountingKeyStore(backend.client())


async def test_keys_are_cached_and_their_use_is_recorded(
    counting: CountingKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is read once a second; its last use is written once a minute."""
    now = 100.0
    callers = Callers(counting, lambda: now)
    key = (await counting.create(KeySpec("x"))).key
    for number in range(100):
        assert await callers.identify(f"sluice_aaaaaaaa_{number:049}") is None
    assert counting.reads == [], "malformed keys never reach Redis"
    for _ in range(3):
        found = await asyncio.gather(*(callers.identify(key) for _ in range(50)))
        assert {caller.key_id for caller in found if caller} == {id_of(key)}
        now += 0.3
    assert len(counting.reads) == 1
    now += 0.2
    assert await callers.identify(key)
    assert len(counting.reads) == 2
    for _ in range(4):
        now += 28.0
        assert await callers.identify(key)
        await asyncio.sleep(0)
    assert counting.uses == [id_of(key)] * 2
    monkeypatch.setattr(callers_module, "MAX_CACHED_KEYS", 10)
    for number in range(50):
        await callers.identify(generate_key(f"{number:08}"))
    assert len(callers._cache) == 10
    await callers.close()


async def test_unknown_keys_are_looked_up_in_few_commands(
    counting: CountingKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 60.0)  # no expiry on a slow machine
    callers = Callers(counting)
    counting.free.clear()
    keys = [generate_key(f"{number:08}") for number in range(600)]
    asking = [asyncio.ensure_future(callers.identify(key)) for key in keys for _ in range(2)]
    await asyncio.sleep(0.01)
    assert len(counting.reads) == 1
    counting.free.set()
    assert set(await asyncio.gather(*asking)) == {None}
    assert len(counting.reads) <= 4
    assert sum(len(batch) for batch in counting.reads) == 600
    for key in keys[:10]:  # unknown keys are cached as well
        assert await callers.identify(key) is None
    assert len(counting.reads) <= 4


async def test_canceled_lookup_does_not_affect_others(counting: CountingKeyStore) -> None:
    callers = Callers(counting)
    key = (await counting.create(KeySpec("x"))).key
    counting.free.clear()
    leaving, staying = (asyncio.ensure_future(callers.identify(key)) for _ in range(2))
    await asyncio.sleep(0.01)
    leaving.cancel()
    counting.free.set()
    assert await staying
    await callers.close()


async def test_authentication_fails_closed_without_redis(counting: CountingKeyStore) -> None:
    now = 100.0
    callers = Callers(counting, lambda: now)
    key = (await counting.create(KeySpec("x"))).key
    caller = await callers.identify(key)
    assert caller
    counting.unreachable = True
    assert await callers.identify(key)  # cached for the rest of the second
    now += 2
    with pytest.raises(StoreUnavailable):
        await callers.identify(key)
    assert await callers.is_still_valid(caller)  # open streams continue
    counting.unreachable = False
    assert await callers.identify(key)
    await callers.close()


async def test_response_is_503_without_redis(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await key_for(strict)
    with monkeypatch.context() as patched:
        away = raising(StoreUnavailable("away"))
        patched.setattr(strict.state.access.keys, "find", away)
        check_problem(await post(strict, key), 503, "store_unavailable")
        check_problem(await call(strict, "GET", "/v1/whoami", key), 503, "store_unavailable")
        assert (await strict.client.get("/healthz", bearer(key))).status == 200
    await strict.redis.delete("access:keys")
    await strict.redis.set("access:keys", "a key of another type")
    check_problem(await post(strict, key), 503)


ADDRESS = "10.9.8.7:6379"


async def test_only_operators_see_the_address_of_redis(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callers_module, "CACHE_TTL_S", 600.0)
    operator, tenant = await key_for(strict), await key_for(strict, tenant="shop")
    for key in (operator, tenant):
        assert (await call(strict, "GET", "/v1/whoami", key)).status == 200
    job_id = (await post(strict, tenant)).json()["job_id"]
    away = raising(StoreUnavailable(f"Error 111 connecting to {ADDRESS}. Connection refused."))
    store, access = strict.state.store, strict.state.access
    for owner, method in ((store, "check_writable"), (store, "get"), (access.keys, "find")):
        monkeypatch.setattr(owner, method, away)
    caplog.set_level(logging.WARNING, "sluice.gateway.http.problems")
    caplog.handler.setFormatter(TextFormatter("%(message)s"))
    unknown = generate_key("aaaaaaaa")
    known_id = {"x-request-id": "r-7"}
    send, job = strict.client.send, f"/v1/jobs/{job_id}"
    answers = [
        await send("GET", "/readyz", known_id),
        await send("POST", SESSION, {**PAGE, **JSON, **known_id}, {"key": unknown}),
        await send("GET", job, bearer(unknown, **known_id)),
        await send("GET", job, bearer(tenant, **known_id)),
        await send("GET", job, bearer(operator, **known_id)),
    ]
    shown = []
    for answer in answers:
        problem = check_problem(answer, 503, "store_unavailable")
        assert problem["request_id"] == "r-7"
        shown.append(ADDRESS in answer.body.decode())
        assert shown[-1] or "under this request id" in problem["detail"]
    assert shown == [False, False, False, False, True]
    lines = caplog.text.splitlines()
    assert len(lines) == len(answers)
    assert all(ADDRESS in line and "request_id=r-7" in line for line in lines)


async def test_keys_are_never_logged(strict: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = await key_for(strict, scopes=("admin",))
    created = await call(strict, "POST", "/v1/keys", key, {"name": "second"})
    second = created.json()["key"]
    rotated = (await call(strict, "POST", f"/v1/keys/{id_of(second)}/rotate", key)).json()["key"]
    for shown in (key, second, rotated, key[:-1], generate_key("aaaaaaaa")):
        job_id = (await post(strict, shown)).json().get("job_id", "x")
        await call(strict, "GET", f"/v1/jobs/{job_id}", shown)
        await call(strict, "DELETE", f"/v1/jobs/{job_id}", shown)
    await call(strict, "DELETE", f"/v1/keys/{id_of(second)}", key)
    assert "key.revoke" in caplog.text
    logged = caplog.text + "".join(str(record.__dict__) for record in caplog.records)
    for secret in (key, second, rotated):
        assert secret not in logged
        assert secret.rpartition("_")[2] not in logged
    assert "uthorization" not in logged


async def test_verified_key_does_not_verify_another(counting: CountingKeyStore) -> None:
    callers = Callers(counting)
    old = (await counting.create(KeySpec("x"))).key
    rotated = await counting.rotate(id_of(old), 60)
    assert rotated is not None
    for _ in range(3):
        for key in (old, rotated.key):
            caller = await callers.identify(key)
            assert caller is not None
            assert caller.digest == key_digest(key)
            assert await callers.identify(key) is caller
            for other in (generate_key(id_of(old)), key[:-1], f"{key}x", f"{key[:-1]}\xe9", ""):
                assert await callers.identify(other) is None
    await callers.close()


async def test_access_log_has_the_address_of_rejected_clients(
    strict: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    key = await key_for(strict, scopes=("jobs:read",))
    with caplog.at_level(logging.INFO, "sluice.gateway.access"):
        await call(strict, "GET", "/v1/keys")
        await call(strict, "GET", "/v1/keys", key)
        await call(strict, "GET", "/v1/whoami", key)
    lines = [
        record.getMessage() for record in caplog.records if record.name == "sluice.gateway.access"
    ]
    assert [line.partition("ms")[2] for line in lines] == [" from 127.0.0.1"] * 2 + [""]
