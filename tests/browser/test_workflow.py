"""A workflow from start to completion, reviewed by keyboard or in bulk."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.browser.support.dashboard_page import DashboardPage, wait_for
from tests.browser.support.live_server import LiveServer
from tests.browser.support.sample_data import COMMIT_LOG


def test_start_review_by_keyboard_and_complete(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    page = dashboard.open("/ui/workflows", "Workflows")
    page.get_by_role("button", name="Start workflow").click()
    page.get_by_label("Workflow", exact=True).select_option("release_notes_v1")
    page.get_by_text("More", exact=True).click()
    steps = {"collect": {"log": COMMIT_LOG}, "publish": {"version": "1.3"}}
    page.get_by_label(re.compile("Step options")).fill(json.dumps(steps))
    page.get_by_role("button", name="Start", exact=True).click()
    dashboard.wait_for_page(re.compile("^wf_"))
    workflow_id = page.url.rpartition("/")[2]

    rows = page.locator("ol.review > li")
    expect(rows).to_have_count(7)  # advanced to the review automatically
    press = page.keyboard.press

    def statuses() -> list[str]:
        answer = server.request("GET", f"/api/workflow/jobs/{workflow_id}/results?step=draft")[1]
        return [item["status"] for item in answer["result"]["items"]]

    press("a")  # approves the first, moves to the next
    expect(rows.nth(0)).to_have_attribute("data-status", "approved")
    press("r")
    expect(rows.nth(1)).to_have_attribute("data-status", "rejected")
    wait_for(page, lambda: statuses()[:3] == ["approved", "rejected", "proposed"])
    press("u")  # undo the rejection
    expect(rows.nth(1)).to_have_attribute("data-status", "proposed")
    wait_for(page, lambda: statuses()[:3] == ["approved", "proposed", "proposed"])

    rows.nth(1).focus()
    press("e")
    edit = rows.nth(1).locator("form")
    edit.get_by_label("To", exact=True).fill("Keep the text of a canceled job")
    press("Enter")
    expect(rows.nth(1)).to_contain_text("Keep the text of a canceled job")
    expect(rows.nth(1)).to_have_attribute("data-status", "approved")

    for number in range(2, 6):
        rows.nth(number).focus()
        press("a")
        expect(rows.nth(number)).to_have_attribute("data-status", "approved")
    page.get_by_role("button", name="Finish, reject 1 left").click()
    page.get_by_role("dialog").get_by_role("button", name="Finish").click()
    expect(page.locator("main .badge").first).to_have_text("completed")

    answer = server.request("GET", f"/api/workflow/jobs/{workflow_id}/results?step=publish")[1]
    notes = answer["result"]["items"][0]["payload"]
    assert notes["lines"] == 6
    assert "Keep the text of a canceled job" in notes["markdown"]


def test_bulk_approval_completes_the_workflow(dashboard: DashboardPage, server: LiveServer) -> None:
    log = "\n".join(f"fix: number {number}" for number in range(30))
    workflow_id = server.start_workflow(log)
    page = dashboard.open(f"/ui/workflows/{workflow_id}", workflow_id)
    expect(page.locator("ol.review > li")).to_have_count(30)
    page.get_by_role("button", name=re.compile("^Approve 30")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type 30")).fill("30")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    # With nothing left to decide the workflow continues, and the approved proposals are applied.
    expect(page.locator("main .badge").first).to_have_text("completed")
    expect(page.locator("ol.review > li[data-status=applied]")).to_have_count(30)
