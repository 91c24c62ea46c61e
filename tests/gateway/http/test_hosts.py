"""Which requests are accepted, by Host and by Origin."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from common.errors import SettingsError
from common.settings.gateway import GatewaySettings
from gateway.app import create_app
from gateway.http.problems import Problem
from gateway.http.security import HostPolicy, OriginPolicy, is_same_origin
from tests.gateway.asgi import Answer
from tests.gateway.conftest import CHAT, Gateway, Make, check_problem

OWN = socket.gethostname().lower()
HTTP_1_1 = {"http_version": "1.1"}


async def by_name(gateway: Gateway, *hosts: str, method: str = "GET", **more: str) -> Answer:
    """A request with these Host headers and no others."""
    headers = [("host", host) for host in hosts]
    headers += [(name.replace("_", "-"), value) for name, value in more.items()]
    return await gateway.client.begin(method, "/healthz", headers, own_host=False).answer()


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:8080", "LOCALHOST", "localhost.", "localhost.:80", "a.b.localhost",
        "127.0.0.1", "127.0.0.1:8080", "192.168.1.20:9", "[::1]", "[::1]:8080", "[fe80::1]",
        "10.0.0.1:", OWN, f"{OWN}:80", f"{OWN.partition('.')[0]}.local", OWN.upper(),
    ],
)  # fmt: skip
async def test_own_names_and_addresses_are_accepted(fake_gateway: Gateway, host: str) -> None:
    for _ in range(2):  # the second time from the cache
        assert (await by_name(fake_gateway, host)).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "localhost.evil.example", "evil.example:8080", "evillocalhost",
        "127.0.0.1.evil.example", "127.1", "0x7f.1", "2130706433", "sluice", ".localhost.evil",
        "[::1].evil",
    ],
)  # fmt: skip
async def test_other_host_names_are_rejected(fake_gateway: Gateway, host: str) -> None:
    answer = await by_name(fake_gateway, host)
    if host == "[::1].evil" or host.startswith("."):
        check_problem(answer, 400, "malformed_request")
    else:
        problem = check_problem(answer, 421, "misdirected_request")
        assert "ALLOWED_HOSTS" in problem["detail"]


async def test_the_host_is_checked_before_anything_else(fake_gateway: Gateway) -> None:
    """Before the body, the fast path, the routes and the documentation."""
    before = await fake_gateway.snapshot()
    for method, target in (
        ("POST", "/v1/jobs"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("DELETE", "/v1/dlq?all=true"),
        ("GET", "/nowhere"),
    ):
        exchange = fake_gateway.client.begin(
            method, target, [("host", "evil.example")], [], own_host=False
        )
        check_problem(await exchange.answer(), 421, "misdirected_request")
    assert await fake_gateway.snapshot() == before


async def test_exactly_one_host_header_is_required(fake_gateway: Gateway) -> None:
    check_problem(await by_name(fake_gateway, "localhost", "localhost"), 400, "malformed_request")
    check_problem(await by_name(fake_gateway, "localhost", "evil.example"), 400)
    check_problem(await by_name(fake_gateway), 400, "malformed_request")


def test_http_1_0_needs_no_host_header() -> None:
    HostPolicy().check({"http_version": "1.0"}, None)
    with pytest.raises(Problem):
        HostPolicy().check({"http_version": "1.0"}, b"evil.example")


@pytest.mark.parametrize(
    ("allowed", "host", "known"),
    [
        ("node.example.com", "node.example.com", True),
        ("Node.Example.com. , other.example", "NODE.example.com:8080", True),
        ("node.example.com", "other.node.example.com", False),
        ("*.example.com", "node.example.com", True),
        ("*.example.com", "a.node.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("node", "node:1", True),
    ],
)
def test_allowed_hosts_may_have_wildcards(allowed: str, host: str, known: bool) -> None:
    hosts = HostPolicy(allowed, machine="jetson.lan")
    if known:
        hosts.check(HTTP_1_1, host.encode())
    else:
        with pytest.raises(Problem) as refused:
            hosts.check(HTTP_1_1, host.encode())
        assert refused.value.status == 421


def test_names_of_the_machine_are_accepted() -> None:
    hosts = HostPolicy("", machine="Jetson.lan")
    for name in (b"jetson.lan", b"jetson", b"jetson.local", b"JETSON.LOCAL.:80"):
        hosts.check(HTTP_1_1, name)
    with pytest.raises(Problem):
        hosts.check(HTTP_1_1, b"jetson.example")


def test_the_cache_of_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.security.MAX_CACHED_HOSTS", 10)
    hosts = HostPolicy()
    for port in range(100):
        hosts.check(HTTP_1_1, b"localhost:%d" % port)
        assert len(hosts._accepted) <= 10


# Pages of other sites

CHANGING = ("POST", "PUT", "PATCH", "DELETE")
PAGE = {"host": "localhost:8080"}


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("https://localhost:8080", "localhost:8080", True),
        ("https://node.example.com", "node.example.com", True),
        ("http://node.example.com", "Node.Example.com:80", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://localhost:3000", "localhost:8080", False),
        ("http://localhost", "localhost:8080", False),
        ("http://evil.example", "localhost:8080", False),
        ("http://localhost:8080.evil.example", "localhost:8080", False),
        ("null", "null", False),
        ("", "", False),
        ("http://localhost:8080/", "localhost:8080", False),
        ("file://", "localhost", False),
        ("\xff", "localhost", False),
    ],
)
def test_the_origin_is_compared_with_the_host(origin: str, host: str, own: bool) -> None:
    assert is_same_origin(origin.encode("latin-1"), host.encode("latin-1")) is own


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://localhost:8080"}, True),
        ({"origin": "http://localhost:8080", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
    ],
)
async def test_cross_site_requests_change_nothing(
    fake_gateway: Gateway, headers: dict[str, str], allowed: bool
) -> None:
    answer = await fake_gateway.client.post(CHAT, headers)
    if allowed:
        assert answer.status == 202
        return
    problem = check_problem(answer, 403, "foreign_origin")
    assert "ALLOWED_ORIGINS" in problem["detail"]
    assert await fake_gateway.redis.dbsize() == 0
    for method in CHANGING:
        check_problem(await fake_gateway.client.send(method, "/x", headers), 403, "foreign_origin")
    assert (await fake_gateway.client.get("/healthz", headers)).status == 200


async def test_two_origin_headers_are_rejected(fake_gateway: Gateway) -> None:
    headers = [("origin", "http://evil.example"), ("origin", "http://localhost:8080")]
    answer = await fake_gateway.client.send("POST", "/v1/jobs", headers)
    check_problem(answer, 400, "malformed_request")


# CORS

APP = "https://app.example.com"
PREFLIGHT = {"origin": APP, "access-control-request-method": "POST"}


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-control-")}


async def test_without_allowed_origins_there_is_no_cors(fake_gateway: Gateway) -> None:
    for answer in (
        await fake_gateway.client.get("/healthz", {"origin": APP}),
        await fake_gateway.client.send("OPTIONS", "/v1/jobs", PREFLIGHT),
    ):
        assert cors(answer) == {}
        assert answer.header("vary") is None
    check_problem(answer, 405)


async def test_allowed_origins_may_call_and_read(fake_make: Make) -> None:
    gateway = fake_make(allowed_origins=f"{APP}, http://localhost:3000")
    from_page = {"origin": APP, "sec-fetch-site": "cross-site"}
    for answer in (
        await gateway.client.post(CHAT, from_page),
        await gateway.client.get("/healthz", from_page),
        await gateway.client.get("/nowhere", from_page),
        await gateway.client.post(b"{", from_page),
    ):
        assert cors(answer)["access-control-allow-origin"] == APP
        exposed = cors(answer)["access-control-expose-headers"]
        for name in (
            "Location",
            "Retry-After",
            "ETag",
            "X-Request-Id",
            "Idempotency-Replayed",
            "Idempotent-Replayed",
        ):
            assert name in exposed
        assert "access-control-allow-credentials" not in cors(answer)
        assert answer.header("vary") == "Origin"
    denied = await gateway.client.get("/healthz", {"origin": "https://evil.example"})
    assert (cors(denied), denied.header("vary")) == ({}, "Origin")
    assert (await gateway.client.get("/healthz")).header("vary") == "Origin"


async def test_preflights_are_answered_for_allowed_origins_only(fake_make: Make) -> None:
    gateway = fake_make(allowed_origins=APP)
    for target in ("/v1/jobs", "/v1/jobs/x", "/nowhere"):
        answer = await gateway.client.send("OPTIONS", target, PREFLIGHT)
        assert (answer.status, answer.body) == (204, b"")
        cors_headers = cors(answer)
        assert cors_headers["access-control-allow-origin"] == APP
        assert "POST" in cors_headers["access-control-allow-methods"]
        for name in ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"):
            assert name in cors_headers["access-control-allow-headers"]
        assert "access-control-allow-private-network" not in cors_headers
    lan = {**PREFLIGHT, "access-control-request-private-network": "true"}
    answer = await gateway.client.send("OPTIONS", "/v1/jobs", lan)
    assert cors(answer)["access-control-allow-private-network"] == "true"
    denied = {**PREFLIGHT, "origin": "https://evil.example"}
    refused = await gateway.client.send("OPTIONS", "/v1/jobs", denied)
    assert (refused.status, cors(refused)) == (405, {})


@pytest.mark.parametrize("written", ["HTTPS://App.Example.com:443", "https://app.example.com"])
def test_origins_are_normalised_as_in_browsers(written: str) -> None:
    answered = dict(OriginPolicy(written).check("POST", {b"origin": APP.encode()}))
    assert answered[b"access-control-allow-origin"] == APP.encode()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("allowed_origins", "https://app.example.com/"),
        ("allowed_origins", "https://app.example.com/path"),
        ("allowed_origins", "app.example.com"),
        ("allowed_origins", "*"),
        ("allowed_origins", "null"),
        ("allowed_origins", "https://user@app.example.com"),
        ("allowed_hosts", "http://node.example.com"),
        ("allowed_hosts", "node.example.com:8080"),
        ("allowed_hosts", "node/path"),
        ("allowed_hosts", "*"),
    ],
)
def test_an_invalid_setting_is_reported_at_startup(setting: str, value: str) -> None:
    given: Any = {setting: value}
    with pytest.raises(SettingsError, match=setting.upper()) as error:
        create_app(GatewaySettings(**given))
    assert value.partition(",")[0].lower() in str(error.value).lower()
