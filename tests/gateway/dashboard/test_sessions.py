"""Dashboard sessions: sign-in, permissions, request origin, expiry and auditing."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from sluice.common.access.record import KeySpec
from sluice.common.contracts.access import AccessKeys
from sluice.gateway.dashboard import sessions as module
from sluice.gateway.http import middleware
from tests.support.gateway.access import bearer, call, client_at, id_of, key_for
from tests.support.gateway.asgi import JSON, Exchange
from tests.support.gateway.dashboard import PAGE, SESSION, Browser
from tests.support.gateway.faults import raising, record_calls
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem
from tests.support.waiting import eventually

pytestmark = pytest.mark.fakeredis_only

EVERYTHING = ["jobs:write", "jobs:read", "metrics", "ui", "admin"]


async def audit_entries(gateway: Gateway) -> list[tuple[str, str, str]]:
    entries = await gateway.state.access.audit_log.page("+", 50)
    return [(entry.who, entry.action, entry.target) for entry in reversed(entries)]


# -- sign-in ---------------------------------------------------------------------------------------


def slow_sign_in(gateway: Gateway) -> Exchange:
    """A request to sign in whose body does not arrive."""
    headers = {**PAGE, **JSON, "content-length": "100"}
    return gateway.client.begin("POST", SESSION, headers, [])


async def test_a_sign_in_is_short_and_fast(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "SIGN_IN_TIMEOUT_S", 0.01)
    answer = await slow_sign_in(strict).answer()
    check_problem(answer, 408, "request_timeout")
    monkeypatch.undo()
    browser = Browser(strict)
    check_problem(await browser.sign_in("x" * 1024), 413, "body_too_large")
    for declared in ({}, {"content-length": "1025"}):
        chunks = [b'{"key":"', b"x" * 1020, b'"}']
        headers = {**PAGE, **JSON, **declared}
        answer = await strict.client.begin("POST", SESSION, headers, chunks).answer()
        check_problem(answer, 413, "body_too_large")
    key = await key_for(strict, "n" * 100, scopes=("ui",))
    assert (await browser.sign_in(key, actions=True)).status == 200


async def test_the_number_of_concurrent_sign_ins_is_limited(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "SIGN_IN_TIMEOUT_S", 600.0)
    key = await key_for(strict, scopes=("ui",))
    sessions = strict.state.access.sessions
    slow = [slow_sign_in(strict) for _ in range(module.MAX_SIGN_INS)]
    await eventually(lambda: sessions.sign_ins == module.MAX_SIGN_INS)
    refused = await Browser(strict).sign_in(key)
    check_problem(refused, 503, "too_many_sign_ins")
    assert refused.header("retry-after") == "2"
    for exchange in slow:
        await exchange.hang_up()
    await eventually(lambda: sessions.sign_ins == 0)
    assert (await Browser(strict).sign_in(key)).status == 200
    assert sessions.sign_ins == 0


async def test_cookie_replaces_the_key_after_sign_in(strict: Gateway) -> None:
    key = await key_for(strict, "on call", scopes=("ui",))
    browser = Browser(strict)
    me = await browser.me()
    assert (me["sign_in_needed"], me["signed_in"]) == (True, False)
    assert (me["may"], me["reads"], me["scopes"], me["key_id"]) == ([], [], [], None)
    check_problem(await browser.get("/v1/workers"), 401, "key_required")
    answer = await browser.sign_in(key)
    assert answer.status == 200
    me = answer.json()
    assert me == await browser.me()
    given = (answer.header("set-cookie") or "").lower()
    for word in ("httponly", "samesite=strict", "path=/", "max-age=28800"):
        assert word in given
    assert "secure" not in given
    assert answer.header("cache-control") == "no-store"
    assert me["signed_in"]
    assert not me["sign_in_needed"]
    assert (me["key_id"], me["name"], me["tenant"]) == (id_of(key), "on call", None)
    assert me["reads"] == ["jobs", "numbers", "all"]
    assert me["may"] == []
    for path in ("/v1/workers", "/v1/status", "/v1/dlq", "/v1/trail", "/v1/whoami"):
        assert (await browser.get(path)).status == 200
    check_problem(await browser.get("/v1/keys"), 403, "insufficient_scope")
    [session] = [name async for name in strict.redis.scan_iter(match="access:session:*")]
    raw: Any = await strict.redis.get(session)
    assert browser.cookie.encode() not in session + raw, "the cookie is not stored"
    assert key.encode() not in raw
    for name in (session, AccessKeys().sessions(id_of(key))):
        assert 0 < await strict.redis.ttl(name) <= module.SESSION_TTL_S
    tls = {**PAGE, "origin": "https://localhost:8080"}
    answer = await Browser(strict).send("POST", SESSION, {"key": key}, headers=tls)
    assert "secure" in (answer.header("set-cookie") or "").lower()


async def test_invalid_sign_in_creates_no_session(strict: Gateway) -> None:
    key = await key_for(strict, scopes=("ui",))
    writer = await key_for(strict, scopes=("jobs:write", "jobs:read", "metrics"))
    before = await strict.snapshot()
    for body, status, code in (
        ({"key": "sluice_nobodys"}, 401, "invalid_key"),
        ({"key": writer}, 403, "insufficient_scope"),
        ({"key": ""}, 422, "invalid_request"),
        ({"key": 5}, 422, "invalid_request"),
        ({"key": "x" * 500}, 422, "invalid_request"),
        ({"key": "x", "actions": "yes"}, 422, "invalid_request"),
        ({"key": "x", "more": 1}, 422, "invalid_request"),
        ([], 422, "invalid_request"),
        ({}, 422, "invalid_request"),
        ("text", 422, "invalid_request"),
    ):
        answer = await Browser(strict).send("POST", SESSION, body)
        check_problem(answer, status, code)
        assert answer.header("set-cookie") is None
    for missing in (
        ("x-sluice-ui",),
        ("origin", "sec-fetch-site"),
        ("origin", "sec-fetch-site", "x-sluice-ui"),
    ):
        headers = {name: value for name, value in PAGE.items() if name not in missing}
        answer = await Browser(strict).send("POST", SESSION, {"key": key}, headers=headers)
        check_problem(answer, 403, "not_from_dashboard")
    assert await strict.snapshot() == before
    for missing in ("origin", "sec-fetch-site"):  # not every browser sends both
        headers = {name: value for name, value in PAGE.items() if name != missing}
        answer = await Browser(strict).send("POST", SESSION, {"key": key}, headers=headers)
        assert answer.status == 200


async def signed_in(gateway: Gateway, *scopes: str, **options: Any) -> Browser:
    """A browser with a session of a new key."""
    browser = Browser(gateway)
    answer = await browser.sign_in(await key_for(gateway, scopes=scopes), **options)
    assert answer.status == 200
    return browser


# -- permissions -----------------------------------------------------------------------------------


async def test_session_is_read_only_by_default(strict: Gateway) -> None:
    key = await key_for(strict, scopes=("admin",))
    browser = Browser(strict)
    await browser.sign_in(key)
    assert (await browser.me())["may"] == []
    before = await strict.snapshot()
    for method, path, body in (
        ("POST", "/v1/jobs", CHAT),
        ("POST", "/v1/dlq/redrive", {}),
        ("DELETE", f"/v1/keys/{id_of(key)}", None),
        ("GET", "/v1/rag/default/search?q=x", None),
    ):
        check_problem(await browser.send(method, path, body), 403, "session_read_only")
    assert await strict.snapshot() == before
    await browser.sign_in(key, actions=True)
    me = await browser.me()
    assert me["may"] == ["submit", "cancel", "decide", "redrive", "admin"]
    assert me["scopes"] == EVERYTHING
    assert (await browser.send("POST", "/v1/jobs", CHAT)).status == 202


async def test_session_has_the_permissions_of_its_key(strict: Gateway) -> None:
    key = await key_for(strict, tenant="shop", scopes=("ui", "jobs:write"))
    browser = Browser(strict)
    await browser.sign_in(key, actions=True)
    me = await browser.me()
    assert (me["tenant"], me["may"]) == ("shop", ["submit", "cancel"])
    assert me["reads"] == ["jobs", "numbers"]
    job = (await browser.send("POST", "/v1/jobs", CHAT)).json()["job_id"]
    assert (await browser.get(f"/v1/jobs/{job}")).status == 200
    other = await strict.client.post(CHAT, bearer(await key_for(strict, tenant="other")))
    check_problem(await browser.get(f"/v1/jobs/{other.json()['job_id']}"), 404, "job_not_found")
    for path in ("/v1/dlq", "/v1/trail", "/v1/audit", "/v1/keys"):
        check_problem(await browser.get(path), 403, "insufficient_scope")
    check_problem(await browser.send("POST", "/v1/audit"), 403, "insufficient_scope")


async def test_key_takes_precedence_over_the_cookie(strict: Gateway) -> None:
    browser = await signed_in(strict, "admin")
    weak = await key_for(strict, scopes=("jobs:read",))
    headers = {**bearer(weak), "cookie": f"sluice_session={browser.cookie}"}
    check_problem(await strict.client.get("/v1/keys", headers), 403, "insufficient_scope")
    bad = {"authorization": "Bearer sluice_x", "cookie": f"sluice_session={browser.cookie}"}
    check_problem(await strict.client.get("/v1/keys", bad), 401, "invalid_key")


# -- request origin --------------------------------------------------------------------------------


async def test_changes_require_dashboard_headers(strict: Gateway) -> None:
    browser = await signed_in(strict, "admin", actions=True)
    before = await strict.snapshot()
    for headers in (
        {},
        {"x-sluice-ui": "1"},
        {"origin": "http://localhost:8080"},
        {"sec-fetch-site": "same-origin"},
        {"x-sluice-ui": "1", "sec-fetch-site": "none"},
        {"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"},
    ):
        answer = await browser.send("POST", "/v1/jobs", CHAT, headers=headers)
        check_problem(answer, 403, "not_from_dashboard")
    assert await strict.snapshot() == before
    answer = await browser.send("GET", "/v1/workers", headers={"sec-fetch-site": "none"})
    assert answer.status == 200, "an address typed by the user"


async def test_pages_of_other_sites_cannot_use_the_session(make: Make) -> None:
    gateway = make(auth="required", allowed_origins="http://localhost:9999")
    browser = await signed_in(gateway, "admin", actions=True)
    for origin, site in (
        ("http://evil.example", "cross-site"),
        ("http://localhost:9999", "same-site"),
        ("null", "cross-site"),
    ):
        cross_site = {"origin": origin, "sec-fetch-site": site, "x-sluice-ui": "1"}
        answer = await browser.send("POST", "/v1/jobs", CHAT, headers=cross_site)
        assert answer.status in (401, 403)
        reading = await browser.send("GET", "/v1/keys", headers=cross_site)
        check_problem(reading, 401, "key_required")
        out = await browser.send("DELETE", SESSION, headers=cross_site)
        assert out.status == 403
        assert (await browser.me())["signed_in"]


async def test_unknown_cookies_and_invalid_records_are_ignored(strict: Gateway) -> None:
    browser = Browser(strict)
    cookies = ("", "x", "A" * 4000, "../../etc", "ü" * 43, '"quoted"', "a=b=c", "\x7f" * 43)
    for cookie in (*cookies, "A" * 43):
        browser.cookie = cookie
        check_problem(await browser.get("/v1/workers"), 401, "key_required")
        assert (await browser.me())["sign_in_needed"]
    record = {"key_id": "k3x9q2ab", "key_sha256": "0" * 64, "actions": True, "expires_ms": 9e18}
    odd = ({"key_id": "k3x9q2ab"}, {**record, "key_id": 5, "actions": 1}, record)
    for stored in (b"", b"no json", b"[]", b"5", *(json.dumps(each).encode() for each in odd)):
        strict.state.access.sessions._cache.clear()
        await strict.redis.set(AccessKeys().session(module._digest(browser.cookie)), stored)
        check_problem(await browser.get("/v1/workers"), 401, "key_required")


async def test_sessions_fail_closed_without_redis(strict: Gateway) -> None:
    browser = await signed_in(strict, "ui")
    strict.state.access.sessions._cache.clear()
    strict.state.access.sessions._lookup._read = raising(ConnectionError())
    check_problem(await browser.get("/v1/workers"), 503, "store_unavailable")
    key = await key_for(strict, scopes=("ui",))
    await strict.redis.set(AccessKeys().sessions(id_of(key)), "text")
    check_problem(await Browser(strict).sign_in(key), 503, "store_unavailable")


# -- end of a session ------------------------------------------------------------------------------


async def test_sign_out_and_expiry_end_the_session(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(strict)
    key = await key_for(strict, scopes=("ui",))
    await browser.sign_in(key)
    cookie = browser.cookie
    out = await browser.send("DELETE", SESSION)
    assert out.status == 204
    assert "max-age=0" in (out.header("set-cookie") or "").lower()
    browser.cookie = cookie
    check_problem(await browser.get("/v1/workers"), 401, "key_required")
    assert not [name async for name in strict.redis.scan_iter(match="access:session:*")]
    assert (await browser.send("DELETE", SESSION)).status == 204, "signing out twice is fine"
    await browser.sign_in(key)
    now = module._now_ms()
    monkeypatch.setattr(module, "_now_ms", lambda: now + module.SESSION_TTL_S * 1000)
    check_problem(await browser.get("/v1/workers"), 401, "key_required")


async def test_a_key_that_is_revoked_or_changed_ends_its_sessions(strict: Gateway) -> None:
    admin, access = await key_for(strict, scopes=("admin",)), strict.state.access
    for how in ("revoked", "rotated", "without the ui scope"):
        issued = await access.keys.create(KeySpec("x", scopes=("ui", "jobs:read")))
        key_id, browser = id_of(issued.key), Browser(strict)
        await browser.sign_in(issued.key)
        assert (await browser.get("/v1/jobs")).status == 200
        if how == "revoked":
            assert (await call(strict, "DELETE", f"/v1/keys/{key_id}", admin)).status == 204
        elif how == "rotated":
            rotated = await access.keys.rotate(key_id, grace_s=0)
            access.callers.invalidate(key_id)
        else:  # the record was changed by hand
            changed = replace(issued.record, scopes=frozenset({"jobs:read"}))
            await strict.redis.hset(AccessKeys().records, key_id, changed.to_json())
            access.callers.invalidate(key_id)
        check_problem(await browser.get("/v1/jobs"), 401, "key_required")
        assert (await browser.me())["sign_in_needed"]
    assert rotated is not None
    assert (await browser.sign_in(rotated.key)).status == 200


async def test_streams_end_with_their_session(strict: Gateway) -> None:
    access = strict.state.access
    key = await key_for(strict, scopes=("ui",))
    browser = Browser(strict)
    await browser.sign_in(key)
    session = await access.sessions.by_cookie(browser.cookie)
    assert session is not None
    caller = await access.callers.by_session(session)
    assert caller is not None
    assert await access.callers.is_still_valid(caller)
    await browser.send("DELETE", SESSION)
    assert not await access.callers.is_still_valid(caller)
    by_key = await access.callers.identify(key)
    assert by_key is not None
    assert await access.callers.is_still_valid(by_key), "requests with the key are not affected"


async def test_sessions_per_key_are_limited(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS_PER_KEY", 3)
    key = await key_for(strict, scopes=("ui",))
    browsers = [Browser(strict) for _ in range(5)]
    for browser in browsers:
        assert (await browser.sign_in(key)).status == 200
    strict.state.access.sessions._cache.clear()
    alive = [(await browser.get("/v1/workers")).status == 200 for browser in browsers]
    assert sum(alive) == 3
    assert await strict.redis.zcard(AccessKeys().sessions(id_of(key))) == 3


# -- local requests --------------------------------------------------------------------------------


async def test_local_operator_needs_no_key(gateway: Gateway) -> None:
    browser = Browser(gateway)
    me = await browser.me()
    assert not me["sign_in_needed"]
    assert not me["signed_in"]
    assert me["may"] == ["submit", "cancel", "decide", "redrive", "admin"]
    assert me["reads"] == ["jobs", "numbers", "all", "keys"]
    assert (await browser.send("POST", "/v1/jobs", CHAT)).status == 202
    await gateway.create()  # not an action of the dashboard
    assert await audit_entries(gateway) == [("local", "ui.action", "POST /v1/jobs")]
    await browser.sign_in(await key_for(gateway, tenant="shop", scopes=("ui",)))
    assert (await browser.me())["tenant"] == "shop", "a session limits the operator"
    check_problem(await browser.send("POST", "/v1/jobs", CHAT), 403, "insufficient_scope")
    await browser.send("DELETE", SESSION)
    assert (await browser.me())["name"] == "local"
    remote = Browser(gateway, client_at(gateway))
    assert (await remote.me())["sign_in_needed"]
    check_problem(await remote.get("/v1/workers"), 401, "key_required")


async def test_a_read_only_dashboard_rejects_changes(make: Make) -> None:
    gateway = make(dashboard="read-only")
    browser = Browser(gateway)
    me = await browser.me()
    assert (me["may"], me["actions"]) == ([], False)
    check_problem(await browser.send("POST", "/v1/jobs", CHAT), 403, "dashboard_read_only")
    assert (await gateway.client.post(CHAT)).status == 202, "API requests are not affected"
    key = await key_for(gateway, scopes=("admin",))
    answer = await browser.sign_in(key, actions=True)
    assert (answer.status, answer.json()["actions"]) == (200, False)
    check_problem(await browser.send("POST", "/v1/jobs", CHAT), 403, "dashboard_read_only")
    strict, without = make(auth="required"), make(auth="required", dashboard="off")
    browser, other_browser = await signed_in(strict, "admin"), Browser(without)
    other_browser.cookie = browser.cookie
    assert (await browser.get("/v1/workers")).status == 200
    check_problem(await other_browser.get("/v1/workers"), 401, "key_required")


# -- audit log -------------------------------------------------------------------------------------


async def test_changes_are_audited_before_they_happen(strict: Gateway) -> None:
    key = await key_for(strict, scopes=("admin",))
    browser = Browser(strict)
    await browser.sign_in(key, actions=True)
    job = (await browser.send("POST", "/v1/jobs", CHAT)).json()["job_id"]
    await browser.get(f"/v1/jobs/{job}")
    await browser.send("POST", f"/v1/jobs/{job}/cancel")
    await browser.send("POST", "/v1/jobs", {"task": "nonsense"})
    await browser.get("/v1/rag/default/search?q=x")
    who = id_of(key)
    expected = [
        (who, "ui.action", "POST /ui/session"),
        (who, "ui.action", "POST /v1/jobs"),
        (who, "ui.action", f"POST /v1/jobs/{job}/cancel"),
        (who, "ui.action", "POST /v1/jobs"),
    ]
    assert [row for row in await audit_entries(strict) if row in expected] == expected
    assert all("GET /v1/jobs" not in target for _, _, target in await audit_entries(strict))
    await strict.redis.delete(AccessKeys().audit_log)
    await strict.redis.set(AccessKeys().audit_log, "text")
    before = await strict.snapshot()
    check_problem(await browser.send("POST", "/v1/jobs", CHAT), 503, "store_corrupt")
    assert await strict.snapshot() == before


# -- cost ------------------------------------------------------------------------------------------


async def test_unknown_cookies_are_looked_up_in_few_commands(
    strict: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CACHE_TTL_S", 60.0)  # no expiry on a slow machine
    sessions = strict.state.access.sessions
    reads = record_calls(monkeypatch, sessions._lookup, "_read")
    await asyncio.gather(*(sessions.by_cookie(f"{n:043d}") for n in range(600)))
    assert len(reads) <= 4
    await sessions.by_cookie("0" * 43)
    assert sum(len(names) for (names,) in reads) == 600, "unknown cookies are cached as well"


async def test_path_cannot_forge_an_audit_entry(
    strict: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    key = await key_for(strict, scopes=("ui", "jobs:write"))
    browser = Browser(strict)
    await browser.sign_in(key, actions=True)
    caplog.set_level("INFO", "sluice.common.access.audit_log")
    check_problem(await browser.send("POST", "/v1/jobs/x%0Atrail:/cancel"), 400)
    forged = "/v1/jobs/x%20trail:%20local%20key.create%20\u202e/cancel"
    await browser.send("POST", forged)
    who, action, target = (await audit_entries(strict))[-1]
    assert (who, action) == (id_of(key), "ui.action")
    assert target == "POST /v1/jobs/x%20trail:%20local%20key.create%20%E2%80%AE/cancel"
    lines = [each for each in caplog.records if each.name == "sluice.common.access.audit_log"]
    assert lines
    assert all(line.getMessage().isprintable() for line in lines)
