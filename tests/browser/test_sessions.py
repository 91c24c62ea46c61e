"""Sessions: read-only by default; actions are opt-in, limited by the key, and audited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.support.dashboard_page import DashboardPage
from tests.browser.support.live_server import LiveServer, run_server

#: Console errors of Chromium for 401 and 403 responses.
REFUSED = r"status of 40[13]"


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with run_server(tmp_path_factory.mktemp("server"), AUTH="required") as server:
        yield server


@pytest.fixture(scope="module")
def admin(server: LiveServer) -> str:
    return server.create_key("--name", "boss", "--scope", "admin")


def create_key(server: LiveServer, admin: str, *scopes: str) -> str:
    request = {"name": "-".join(scopes), "scopes": list(scopes)}
    status, answer = server.ask("POST", "/v1/keys", request, admin)
    assert status == 201, answer
    return str(answer["key"])


def sign_in(dashboard: DashboardPage, secret: str, *, actions: bool = False) -> None:
    dashboard.allow_errors(REFUSED)  # the page requests the session before signing in
    dashboard.open("/ui/jobs", "Sign in")  # redirected to the sign-in page
    dashboard.page.get_by_label("API key").fill(secret)
    if actions:
        dashboard.page.get_by_label("Allow actions").check()
    dashboard.page.get_by_role("button", name="Sign in").click()
    dashboard.wait_for_page("Jobs")  # and back to the requested page


def fetch_status(dashboard: DashboardPage, method: str, path: str) -> int:
    """Status of a request sent by the page itself, independent of its buttons."""
    status: int = dashboard.page.evaluate(
        """async ([method, path]) => (await fetch(path, {method, headers:
          {"X-Sluice-UI": "1", "Content-Type": "application/json"},
          body: JSON.stringify({task: "chat", payload: {}})})).status""",
        [method, path],
    )
    return status


def test_wrong_key_shows_an_error(dashboard: DashboardPage) -> None:
    dashboard.allow_errors(REFUSED)
    page = dashboard.open("/ui", "Sign in")
    page.get_by_label("API key").fill("sluice_no_such_key")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")


def test_session_without_actions_is_read_only(
    dashboard: DashboardPage, server: LiveServer, admin: str, tmp_path: Path
) -> None:
    job_id = server.submit("code", {"wait": str(tmp_path / "never")}, key=admin)
    sign_in(dashboard, create_key(server, admin, "ui", "jobs:read", "jobs:write"))
    page = dashboard.page
    expect(page.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(1)
    for path in (f"/ui/jobs/{job_id}", "/ui/jobs", "/ui/playground", "/ui/workflows"):
        dashboard.open(path)
        dashboard.wait_until_idle()
        action_buttons = re.compile("^(Cancel|Retry|Submit|Start workflow|Redrive|Purge|New job)")
        assert page.locator("main").get_by_role("button", name=action_buttons).count() == 0, path
    assert fetch_status(dashboard, "POST", f"/v1/jobs/{job_id}/cancel") == 403
    assert fetch_status(dashboard, "POST", "/v1/jobs") == 403
    status, job = server.ask("GET", f"/v1/jobs/{job_id}", key=admin)
    assert (status, job["status"]) == (200, "running")


def test_session_with_actions_is_audited(
    dashboard: DashboardPage, server: LiveServer, admin: str, tmp_path: Path
) -> None:
    job_id = server.submit("code", {"wait": str(tmp_path / "never")}, key=admin)
    sign_in(dashboard, admin, actions=True)
    page = dashboard.open(f"/ui/jobs/{job_id}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.locator("main .badge").first).to_have_text("canceled")
    dashboard.open("/ui/trail", "Audit log")
    row = page.locator("main tr").filter(has_text=f"POST /v1/jobs/{job_id}/cancel")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("ui.action")
    expect(row).to_contain_text("boss")


def test_sign_out_ends_the_session(dashboard: DashboardPage, admin: str) -> None:
    sign_in(dashboard, admin, actions=True)
    dashboard.page.get_by_role("button", name="Sign out").click()
    dashboard.wait_for_page("Sign in")
    assert fetch_status(dashboard, "POST", "/v1/jobs") == 401
