"""Dead letters: similar failures form a group, which is redriven at once."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.support.dashboard_page import DashboardPage
from tests.browser.support.live_server import LiveServer
from tests.support.processes.worker import wait_until


def test_redrive_a_group(dashboard: DashboardPage, server: LiveServer, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    payload = {"fail": "printer 10.0.0.7 is out of paper", "fixed_by": str(fixed)}
    failed = [server.submit("code", {**payload, "page": number}) for number in range(3)]
    other = server.submit("code", {"fail": "the lid is open"})
    server.wait_until_ended(*failed, other)
    page = dashboard.open("/ui/dead", "Dead letters")
    group = page.locator("details.group").filter(has_text="out of paper")
    expect(group.locator(".count")).to_have_text("3")
    group.locator("summary").first.click()
    expect(group.locator("tbody tr")).to_have_count(3)

    fixed.touch()
    group.get_by_role("button", name="Redrive all 3").click()
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Redrive", exact=True)
    expect(confirm).to_be_disabled()  # until the count is typed
    dialog.get_by_label(re.compile("Type 3")).fill("3")
    confirm.click()
    expect(page.locator(".toasts")).to_contain_text("3 redriven")
    expect(group).to_have_count(0)
    expect(page.locator("details.group").filter(has_text="the lid is open")).to_have_count(1)
    assert server.request("GET", "/v1/dlq")[1]["items"][0]["job_id"] == other

    def done() -> bool:
        jobs = server.request("GET", "/v1/jobs?task=code&status=done")[1]["jobs"]
        return len(jobs) == 3

    wait_until(done)
