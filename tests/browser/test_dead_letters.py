"""Dead letters: what failed alike is one group, and goes again with one press."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.browser.view import View
from tests.worker.processes import wait_until


def test_a_group_is_redriven(view: View, site: Site, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    payload = {"fail": "printer 10.0.0.7 is out of paper", "mended": str(mended)}
    failed = [site.submit("code", {**payload, "page": number}) for number in range(3)]
    other = site.submit("code", {"fail": "the lid is open"})
    site.ended(*failed, other)
    page = view.go("/ui/dead", "Dead letters")
    group = page.locator("details.group").filter(has_text="out of paper")
    expect(group.locator(".many")).to_have_text("3")
    group.locator("summary").first.click()
    expect(group.locator("tbody tr")).to_have_count(3)

    mended.touch()
    group.get_by_role("button", name="Redrive all 3").click()
    dialog = page.get_by_role("dialog")
    sure = dialog.get_by_role("button", name="Redrive", exact=True)
    expect(sure).to_be_disabled()  # until the count is typed
    dialog.get_by_label(re.compile("Type 3")).fill("3")
    sure.click()
    expect(page.locator(".toasts")).to_contain_text("3 redriven")
    expect(group).to_have_count(0)
    expect(page.locator("details.group").filter(has_text="the lid is open")).to_have_count(1)
    assert site.ask("GET", "/v1/dlq")[1]["items"][0]["job_id"] == other

    def done() -> bool:
        jobs = site.ask("GET", "/v1/jobs?task=code&status=done")[1]["jobs"]
        return len(jobs) == 3

    wait_until(done)
