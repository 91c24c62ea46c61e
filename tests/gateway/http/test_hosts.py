"""Which requests are accepted, by Host and by Origin."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from sluice.common.errors import SettingsError
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import create_app
from sluice.gateway.http.problems import Problem
from sluice.gateway.http.security import HostPolicy, OriginPolicy, is_same_origin
from tests.support.gateway.asgi import Answer
from tests.support.gateway.harness import CHAT, Gateway, Make, check_problem

pytestmark = pytest.mark.fakeredis_only

OWN = socket.gethostname().lower()
HTTP_1_1 = {"http_version": "1.1"}
FEATURES = ("/v1/images", "/v1/chat/completions", "/api/workflow/jobs", "/v1/rag/x/documents")


async def by_name(gateway: Gateway, *hosts: str, method: str = "GET", **more: str) -> Answer:
    """A request with these Host headers and no others."""
    headers = [("host", host) for host in hosts]
    headers += [(name.replace("_", "-"), value) for name, value in more.items()]
    return await gateway.client.begin(method, "/healthz", headers, own_host=False).answer()


ACCEPTED = [
    *("localhost", "localhost:8080", "LOCALHOST", "localhost.", "localhost.:80", "a.b.localhost"),
    *("127.0.0.1", "127.0.0.1:8080", "192.168.1.20:9", "[::1]", "[::1]:8080", "[fe80::1]"),
    *("10.0.0.1:", OWN, f"{OWN}:80", f"{OWN.partition('.')[0]}.local", OWN.upper()),
]
MISDIRECTED = [
    *("evil.example", "localhost.evil.example", "evil.example:8080", "evillocalhost", "127.1"),
    *("127.0.0.1.evil.example", "0x7f.1", "2130706433", "sluice"),
]


async def test_only_own_names_and_addresses_are_accepted(gateway: Gateway) -> None:
    for host in ACCEPTED * 2:  # the second time from the cache
        assert (await by_name(gateway, host)).status == 200, host
    for host in MISDIRECTED:
        problem = check_problem(await by_name(gateway, host), 421, "misdirected_request")
        assert "ALLOWED_HOSTS" in problem["detail"]
    for host in (".localhost.evil", "[::1].evil"):
        check_problem(await by_name(gateway, host), 400, "malformed_request")
    for hosts in (("localhost", "localhost"), ("localhost", "evil.example"), ()):
        check_problem(await by_name(gateway, *hosts), 400, "malformed_request")


async def test_the_host_is_checked_before_anything_else(gateway: Gateway) -> None:
    """Before the body, the fast path, the routes and the documentation."""
    before = await gateway.snapshot()
    for path in FEATURES:
        answer = await gateway.client.send("POST", path, {"host": "evil.example"})
        assert answer.status == 421, path
    for method, target in (
        ("POST", "/v1/jobs"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("DELETE", "/v1/dlq?all=true"),
        ("GET", "/nowhere"),
    ):
        exchange = gateway.client.begin(
            method, target, [("host", "evil.example")], [], own_host=False
        )
        check_problem(await exchange.answer(), 421, "misdirected_request")
    assert await gateway.snapshot() == before


def test_allowed_hosts_may_have_wildcards() -> None:
    for allowed, host, known in (
        ("node.example.com", "node.example.com", True),
        ("Node.Example.com. , other.example", "NODE.example.com:8080", True),
        ("node.example.com", "other.node.example.com", False),
        ("*.example.com", "node.example.com", True),
        ("*.example.com", "a.node.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "evilexample.com", False),
        ("node", "node:1", True),
        *(
            ("", name, True)
            for name in ("jetson.lan", "jetson", "jetson.local", "JETSON.LOCAL.:80")
        ),
        ("", "jetson.example", False),
    ):
        hosts = HostPolicy(allowed, machine="Jetson.lan")
        if known:
            hosts.check(HTTP_1_1, host.encode())
        else:
            with pytest.raises(Problem) as refused:
                hosts.check(HTTP_1_1, host.encode())
            assert refused.value.status == 421
    HostPolicy().check({"http_version": "1.0"}, None)  # needs no Host header
    with pytest.raises(Problem):
        HostPolicy().check({"http_version": "1.0"}, b"evil.example")


def test_the_cache_of_hosts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.gateway.http.security.MAX_CACHED_HOSTS", 10)
    hosts = HostPolicy()
    for port in range(100):
        hosts.check(HTTP_1_1, b"localhost:%d" % port)
        assert len(hosts._accepted) <= 10


def test_the_origin_is_compared_with_the_host() -> None:
    for written in ("HTTPS://App.Example.com:443", APP):  # normalised as in browsers
        answered = dict(OriginPolicy(written).check("POST", {b"origin": APP.encode()}))
        assert answered[b"access-control-allow-origin"] == APP.encode()
    for origin, host, own in (
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
    ):
        assert is_same_origin(origin.encode("latin-1"), host.encode("latin-1")) is own, origin


async def test_cross_site_requests_change_nothing(gateway: Gateway) -> None:
    own = "http://localhost:8080"
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        problem = check_problem(await gateway.client.post(CHAT, headers), 403, "foreign_origin")
        assert "ALLOWED_ORIGINS" in problem["detail"]
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            check_problem(await gateway.client.send(method, "/x", headers), 403, "foreign_origin")
        for path in FEATURES:
            assert (await gateway.client.send("POST", path, headers)).status == 403, path
        assert (await gateway.client.get("/healthz", headers)).status == 200
    two = [("origin", "http://evil.example"), ("origin", own)]
    answer = await gateway.client.send("POST", "/v1/jobs", two)
    check_problem(answer, 400, "malformed_request")
    assert await gateway.redis.dbsize() == 0
    same_origin = {"origin": own, "sec-fetch-site": "same-origin"}
    sites = ({"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"})
    for headers in ({}, {"origin": own}, same_origin, *sites):
        assert (await gateway.client.post(CHAT, headers)).status == 202, headers


# CORS

APP = "https://app.example.com"
PREFLIGHT = {"origin": APP, "access-control-request-method": "POST"}


def cors(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers if name.startswith("access-control-")}


async def test_without_allowed_origins_there_is_no_cors(gateway: Gateway) -> None:
    for answer in (
        await gateway.client.get("/healthz", {"origin": APP}),
        await gateway.client.send("OPTIONS", "/v1/jobs", PREFLIGHT),
    ):
        assert cors(answer) == {}
        assert answer.header("vary") is None
    check_problem(answer, 405)


async def test_allowed_origins_may_call_and_read(make: Make) -> None:
    gateway = make(allowed_origins=f"{APP}, http://localhost:3000")
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
            *("Location", "Retry-After", "ETag", "X-Request-Id", "X-Job-Id"),
            *("Idempotency-Replayed", "Idempotent-Replayed"),
        ):
            assert name in exposed
        assert "access-control-allow-credentials" not in cors(answer)
        assert answer.header("vary") == "Origin"
    denied = await gateway.client.get("/healthz", {"origin": "https://evil.example"})
    assert (cors(denied), denied.header("vary")) == ({}, "Origin")
    assert (await gateway.client.get("/healthz")).header("vary") == "Origin"


async def test_preflights_are_answered_for_allowed_origins_only(make: Make) -> None:
    gateway = make(allowed_origins=APP)
    for target in ("/v1/jobs", "/v1/jobs/x", "/nowhere"):
        answer = await gateway.client.send("OPTIONS", target, PREFLIGHT)
        assert (answer.status, answer.body) == (204, b"")
        cors_headers = cors(answer)
        assert cors_headers["access-control-allow-origin"] == APP
        methods = set(cors_headers["access-control-allow-methods"].split(", "))
        assert {"POST", "PUT", "PATCH", "DELETE"} <= methods
        for name in (
            *("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"),
            *("X-Upload-Token", "X-Stainless-Lang", "X-Stainless-Timeout"),
        ):
            assert name.lower() in cors_headers["access-control-allow-headers"].lower()
        assert "access-control-allow-private-network" not in cors_headers
    lan = {**PREFLIGHT, "access-control-request-private-network": "true"}
    answer = await gateway.client.send("OPTIONS", "/v1/jobs", lan)
    assert cors(answer)["access-control-allow-private-network"] == "true"
    denied = {**PREFLIGHT, "origin": "https://evil.example"}
    refused = await gateway.client.send("OPTIONS", "/v1/jobs", denied)
    assert (refused.status, cors(refused)) == (405, {})


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("allowed_origins", [f"{APP}/", f"{APP}/path", "app.example.com", "*", "null"]),
        ("allowed_origins", ["https://user@app.example.com"]),
        ("allowed_hosts", ["http://node.example.com", "node.example.com:8080", "node/path", "*"]),
    ],
)
def test_an_invalid_setting_is_reported_at_startup(setting: str, values: list[str]) -> None:
    for value in values:
        given: Any = {setting: value}
        with pytest.raises(SettingsError, match=setting.upper()) as error:
            create_app(GatewaySettings(**given))
        assert value.lower() in str(error.value).lower()
