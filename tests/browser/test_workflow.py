"""A workflow from its start to its end, without a mouse where a person decides a hundred times."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

from tests.browser.furniture import LOG
from tests.browser.site import Site
from tests.browser.view import View, until


def test_is_started_reviewed_by_keyboard_and_completed(view: View, site: Site) -> None:
    page = view.go("/ui/workflows", "Workflows")
    page.get_by_role("button", name="Start one").click()
    page.get_by_label("Workflow", exact=True).select_option("release_notes_v1")
    page.get_by_text("More", exact=True).click()
    steps = {"collect": {"log": LOG}, "publish": {"version": "1.3"}}
    page.get_by_label(re.compile("Options of steps")).fill(json.dumps(steps))
    page.get_by_role("button", name="Start", exact=True).click()
    view.ready(re.compile("^wf_"))
    workflow_id = page.url.rpartition("/")[2]

    rows = page.locator("ol.review > li")
    expect(rows).to_have_count(7)  # it came to the review by itself, and so did the page
    key = page.keyboard.press

    def statuses() -> list[str]:
        answer = site.ask("GET", f"/api/workflow/jobs/{workflow_id}/results?step=draft")[1]
        return [item["status"] for item in answer["result"]["items"]]

    key("a")  # the first is approved, and the next one is here
    expect(rows.nth(0)).to_have_attribute("data-status", "approved")
    key("r")
    expect(rows.nth(1)).to_have_attribute("data-status", "rejected")
    until(page, lambda: statuses()[:3] == ["approved", "rejected", "proposed"])
    key("u")  # no, rather not
    expect(rows.nth(1)).to_have_attribute("data-status", "proposed")
    until(page, lambda: statuses()[:3] == ["approved", "proposed", "proposed"])

    rows.nth(1).focus()
    key("e")
    edit = rows.nth(1).locator("form")
    edit.get_by_label("To", exact=True).fill("A canceled job keeps its words")
    key("Enter")
    expect(rows.nth(1)).to_contain_text("A canceled job keeps its words")
    expect(rows.nth(1)).to_have_attribute("data-status", "approved")

    for number in range(2, 6):
        rows.nth(number).focus()
        key("a")
        expect(rows.nth(number)).to_have_attribute("data-status", "approved")
    page.get_by_role("button", name="Finish, reject 1 left").click()
    page.get_by_role("dialog").get_by_role("button", name="Finish").click()
    expect(page.locator("main .badge").first).to_have_text("completed")

    answer = site.ask("GET", f"/api/workflow/jobs/{workflow_id}/results?step=publish")[1]
    notes = answer["result"]["items"][0]["payload"]
    assert notes["lines"] == 6
    assert "A canceled job keeps its words" in notes["markdown"]


def test_many_are_decided_at_once(view: View, site: Site) -> None:
    log = "\n".join(f"fix: number {number}" for number in range(30))
    workflow_id = site.workflow(log)
    page = view.go(f"/ui/workflows/{workflow_id}", workflow_id)
    expect(page.locator("ol.review > li")).to_have_count(30)
    page.get_by_role("button", name=re.compile("^Approve 30")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type 30")).fill("30")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    # With nothing left to decide it goes on by itself, and what was approved is applied.
    expect(page.locator("main .badge").first).to_have_text("completed")
    expect(page.locator("ol.review > li[data-status=applied]")).to_have_count(30)
