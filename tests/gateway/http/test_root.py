"""`GET /`: a browser gets to the dashboard, other clients get the paths."""

from __future__ import annotations

import pytest

from sluice.gateway.auth.permissions import PUBLIC, permission_for
from tests.support.gateway.harness import Make, check_problem

pytestmark = pytest.mark.fakeredis_only

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PATHS = {
    "service": "sluice",
    "dashboard": "/ui",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "jobs": "/v1/jobs",
    "status": "/v1/status",
    "liveness": "/healthz",
    "readiness": "/readyz",
}


@pytest.mark.parametrize(
    ("dashboard", "auth", "location"),
    [
        ("on", "off", "/ui"),
        ("read-only", "off", "/ui"),
        ("on", "required", "/ui"),  # where a key can be entered
        ("off", "off", "/docs"),
        ("off", "required", None),  # /docs needs a key
    ],
)
async def test_a_browser_is_redirected(
    make: Make, dashboard: str, auth: str, location: str | None
) -> None:
    gateway = make(dashboard=dashboard, auth=auth)
    answer = await gateway.client.get("/", BROWSER)
    assert answer.header("vary") is not None
    if location is None:
        assert (answer.status, answer.json()["docs"]) == (200, "/docs")
        return
    assert (answer.status, answer.header("location")) == (302, location)
    assert (await gateway.client.get(location)).status == 200


@pytest.mark.parametrize("auth", ["off", "required"])
async def test_other_clients_get_the_paths(make: Make, auth: str) -> None:
    gateway = make(auth=auth)
    for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        answer = await gateway.client.get("/", headers)
        assert (answer.status, answer.json()) == (200, PATHS)
        assert answer.header("content-type") == "application/json"
    without = (await make(dashboard="off", auth=auth).client.get("/")).json()
    assert without == {name: path for name, path in PATHS.items() if name != "dashboard"}


async def test_every_listed_path_exists(make: Make) -> None:
    gateway = make()
    for path in list(PATHS.values())[1:]:
        assert (await gateway.client.get(path)).status == 200, path


async def test_the_root_is_public_and_read_only(make: Make) -> None:
    assert permission_for("GET", "/") is permission_for("HEAD", "/") is PUBLIC
    gateway = make()
    head = await gateway.client.begin("HEAD", "/", []).answer()
    assert head.status == 200
    check_problem(await gateway.client.begin("POST", "/", []).answer(), 405)
