"""Signing in: looking is the default, acting is asked for, allowed by the key and written down."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import Site, running
from tests.browser.view import View
from tests.gateway.processes import environment
from tests.worker.processes import ROOT

#: What a browser says of an answer that is a refusal.
REFUSED = r"status of 40[13]"


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Nobody comes in without a key."""
    with running(tmp_path_factory.mktemp("site"), AUTH="required") as site:
        yield site


@pytest.fixture(scope="module")
def admin(site: Site) -> str:
    """A key that may do everything, made as people make their first."""
    made = subprocess.run(
        [sys.executable, "-m", "client", "key", "create", "--name", "boss", "--scope", "admin"],
        env=environment(REDIS_URL=site.redis.url),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


def key(site: Site, admin: str, *scopes: str) -> str:
    wanted = {"name": "-".join(scopes), "scopes": list(scopes)}
    status, answer = site.ask("POST", "/v1/keys", wanted, admin)
    assert status == 201, answer
    return str(answer["key"])


def sign_in(view: View, secret: str, *, actions: bool = False) -> None:
    view.expect_faults(REFUSED)  # it is asked who is there before anybody is
    view.go("/ui/jobs", "Sign in")  # whoever comes without a key is asked for one
    view.page.get_by_label("API key").fill(secret)
    if actions:
        view.page.get_by_label("Allow actions").check()
    view.page.get_by_role("button", name="Sign in").click()
    view.ready("Jobs")  # and is taken where they wanted to go


def refused(view: View, method: str, path: str) -> int:
    """What the gateway says to the page's own request, buttons or not."""
    status: int = view.page.evaluate(
        """async ([method, path]) => (await fetch(path, {method, headers:
          {"X-Sluice-UI": "1", "Content-Type": "application/json"},
          body: JSON.stringify({task: "chat", payload: {}})})).status""",
        [method, path],
    )
    return status


def test_a_wrong_key_is_refused_and_says_so(view: View) -> None:
    view.expect_faults(REFUSED)
    page = view.go("/ui", "Sign in")
    page.get_by_label("API key").fill("sluice_no_such_key")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")


def test_a_session_only_looks_unless_it_was_asked_for_more(
    view: View, site: Site, admin: str, tmp_path: Path
) -> None:
    job_id = site.submit("code", {"wait": str(tmp_path / "never")}, key=admin)
    sign_in(view, key(site, admin, "ui", "jobs:read", "jobs:write"))
    page = view.page
    expect(page.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(1)
    for path in (f"/ui/jobs/{job_id}", "/ui/jobs", "/ui/playground", "/ui/workflows"):
        view.go(path)
        view.settled()
        deeds = re.compile("^(Cancel|Retry|Submit|Start one|Redrive|Purge|New job)")
        assert page.locator("main").get_by_role("button", name=deeds).count() == 0, path
    assert refused(view, "POST", f"/v1/jobs/{job_id}/cancel") == 403
    assert refused(view, "POST", "/v1/jobs") == 403
    status, job = site.ask("GET", f"/v1/jobs/{job_id}", key=admin)
    assert (status, job["status"]) == (200, "running")


def test_with_actions_they_work_and_are_in_the_trail(
    view: View, site: Site, admin: str, tmp_path: Path
) -> None:
    job_id = site.submit("code", {"wait": str(tmp_path / "never")}, key=admin)
    sign_in(view, admin, actions=True)
    page = view.go(f"/ui/jobs/{job_id}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("main .badge").first).to_have_text("canceled")
    view.go("/ui/trail", "Trail")
    row = page.locator("main tr").filter(has_text=f"POST /v1/jobs/{job_id}/cancel")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("ui.action")
    expect(row).to_contain_text("boss")


def test_signing_out_ends_it(view: View, site: Site, admin: str) -> None:
    sign_in(view, admin, actions=True)
    [cookie] = [each for each in view.context.cookies() if "session" in each["name"].lower()]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    view.page.get_by_role("button", name="Sign out").click()
    view.ready("Sign in")
    view.context.add_cookies([cookie])  # a copy that somebody kept
    view.go("/ui/jobs", "Sign in")
    assert refused(view, "POST", "/v1/jobs") == 401


def test_a_revoked_key_ends_its_sessions(view: View, site: Site, admin: str) -> None:
    secret = key(site, admin, "ui")
    sign_in(view, secret)
    status, _ = site.ask("DELETE", f"/v1/keys/{secret.split('_')[1]}", key=admin)
    assert status in (200, 204)
    view.go("/ui/jobs", "Sign in")
