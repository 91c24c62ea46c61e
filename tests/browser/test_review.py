"""The review of a workflow: decisions by key, by hand, by the dozen, taken back and contested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.site import Site, running
from tests.browser.view import View, until, viewing

#: What Chromium writes of its own accord where a request is refused.
CONFLICT = "409"
MANY = 25


def log_of(count: int) -> str:
    return "\n".join(f"fix: number {number:04d} of the leaks" for number in range(1, count + 1))


class Room:
    """One workflow that waits, seen by a person and by somebody else."""

    def __init__(self, site: Site, view: View, count: int) -> None:
        self.site = site
        self.view = view
        self.job_id = site.workflow(log_of(count))
        self.path = f"/api/workflow/jobs/{self.job_id}"
        self.page: Page = view.go(f"/ui/workflows/{self.job_id}", self.job_id)
        expect(self.row(1)).to_be_visible()

    def row(self, number: int) -> Locator:
        return self.page.locator(f".review li[data-id='d_{number:03d}']")

    def press(self, keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def items(self) -> dict[str, Any]:
        _, answer = self.site.ask("GET", f"{self.path}/results?step=draft&limit=500")
        return {item["id"]: item for item in answer["result"]["items"]}

    def statuses(self, *numbers: int) -> list[str]:
        items = self.items()
        return [items[f"d_{number:03d}"]["status"] for number in numbers]

    def stands(self, wanted: dict[int, str]) -> None:
        """Wait until the gateway has it so."""
        until(self.page, lambda: self.statuses(*wanted) == list(wanted.values()))

    def somebody(self, action: str, *numbers: int) -> None:
        """Another person decides."""
        ids = [f"d_{number:03d}" for number in numbers]
        body = {"action": action, "proposal_ids": ids}
        status, answer = self.site.ask("POST", f"{self.path}/proposals/bulk", body)
        assert status == 200, answer

    def edits(self, number: int, to: str) -> Locator:
        """Open the form of a row, and write."""
        self.row(number).get_by_role("button", name=f"Edit d_{number:03d}").click()
        self.row(number).get_by_label("To", exact=True).fill(to)
        return self.row(number).locator("form")


def test_a_key_for_each_decision(view: View, site: Site) -> None:
    room = Room(site, view, 5)
    room.press("aar")
    room.stands({1: "approved", 2: "approved", 3: "rejected", 4: "proposed"})
    expect(room.row(4)).to_have_attribute("aria-current", "true")  # the next that is undecided
    expect(room.row(4)).to_be_focused()
    expect(room.row(3).locator(".badge")).to_have_text("rejected")
    room.press("kk0")
    room.stands({2: "proposed"})
    room.press("u")
    room.stands({2: "approved"})
    expect(view.page.get_by_role("button", name="Undecided 2")).to_be_visible()


def test_what_was_done_last_is_taken_back(view: View, site: Site) -> None:
    room = Room(site, view, 4)
    room.press("ar")
    room.stands({1: "approved", 2: "rejected"})
    room.press("u")
    room.stands({1: "approved", 2: "proposed"})
    expect(room.row(2)).to_be_focused()
    room.press("u")
    room.stands({1: "proposed", 2: "proposed"})
    room.press("u")
    expect(view.page.locator(".bulk [role=status]")).to_contain_text("nothing of yours")


def test_keys_are_told(view: View, site: Site) -> None:
    Room(site, view, 2).press("?")
    expect(view.page.locator("dialog")).to_contain_text("approve")


def test_what_somebody_else_decides_is_seen(view: View, site: Site) -> None:
    room = Room(site, view, 4)
    room.somebody("reject", 2, 3)
    expect(room.row(2)).to_have_attribute("data-status", "rejected")
    expect(room.row(3)).to_have_attribute("data-status", "rejected")
    expect(view.page.locator(".bulk [role=status]")).to_have_text("2 items changed by local.")
    room.press("a")
    room.stands({1: "approved", 2: "rejected"})


def test_somebody_was_faster(view: View, site: Site) -> None:
    view.expect_faults(f"{CONFLICT}|ERR_FAILED")
    view.page.route("**/events/stream*", lambda route: route.abort())  # it hears of nothing
    room = Room(site, view, 3)
    room.somebody("reject", 1)
    room.press("a")
    expect(room.row(1).get_by_role("alert")).to_contain_text("Somebody was faster")
    expect(room.row(1)).to_have_attribute("data-status", "rejected")
    assert room.statuses(1) == ["rejected"]
    room.row(1).get_by_role("button", name="Approve d_001").click()  # knowing it
    room.stands({1: "approved"})
    expect(room.row(1).get_by_role("alert")).to_have_count(0)


def test_only_what_is_ones_own_is_taken_back_by_key(view: View, site: Site) -> None:
    view.expect_faults(CONFLICT)
    room = Room(site, view, 3)
    room.press("a")
    room.stands({1: "approved"})
    room.somebody("reject", 1)
    expect(room.row(1)).to_have_attribute("data-status", "rejected")
    room.press("u")
    expect(room.page.locator(".bulk [role=status]")).to_contain_text("Not taken back")
    assert room.statuses(1) == ["rejected"]
    room.row(1).get_by_role("button", name="Undo d_001").click()  # whoever did it
    room.stands({1: "approved"})


def test_an_edit_in_its_place(view: View, site: Site) -> None:
    room = Room(site, view, 3)
    room.press("je")
    form = room.row(2).locator("form")
    form.get_by_label("To", exact=True).fill("<b id=injected>in better words</b>")
    assert room.statuses(2) == ["proposed"]
    room.page.keyboard.press("Control+Enter")
    room.stands({2: "approved"})
    expect(form).to_have_count(0)
    expect(room.row(2)).to_contain_text("<b id=injected>in better words</b>")
    assert room.items()["d_002"]["payload"]["to"] == "<b id=injected>in better words</b>"
    room.press("u")
    room.stands({2: "proposed"})


def test_an_edit_keeps_what_was_typed_when_somebody_was_faster(view: View, site: Site) -> None:
    view.expect_faults(CONFLICT)
    room = Room(site, view, 3)
    form = room.edits(1, "my words")
    room.somebody("reject", 1, 2)
    expect(room.row(2)).to_have_attribute("data-status", "rejected")  # the page has heard of it
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("It is rejected now, version 2")
    assert room.statuses(1) == ["rejected"]
    expect(form.get_by_label("To", exact=True)).to_have_value("my words")
    form.get_by_role("button", name="Save").click()
    room.stands({1: "approved"})
    assert room.items()["d_001"]["payload"]["to"] == "my words"


def test_many_at_once_are_confirmed_by_their_number_and_taken_back(view: View, site: Site) -> None:
    room = Room(site, view, MANY + 2)
    room.press("r")
    room.stands({1: "rejected"})
    page = room.page
    page.get_by_label("Filter by text").fill("number 000")  # nine, one of them decided
    page.locator(".bulk").get_by_role("button", name="Approve 8 shown").click()
    page.locator("dialog").get_by_role("button", name="Approve").click()  # so few need no number
    room.stands({1: "rejected", 2: "approved", 9: "approved", 10: "proposed"})
    page.locator(".bulk").get_by_role("button", name="Undo").click()
    room.stands({1: "rejected", 2: "proposed", 9: "proposed"})

    page.get_by_label("Filter by text").fill("")
    room.row(MANY + 2).scroll_into_view_if_needed()
    room.row(MANY + 2).get_by_role("button", name="Reject").click()
    page.locator(".bulk").get_by_role("button", name=f"Reject {MANY} shown").click()
    dialog = page.locator("dialog")
    yes = dialog.get_by_role("button", name="Reject")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill(str(MANY + 2))
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill(str(MANY))
    yes.click()
    room.stands({2: "rejected", MANY: "rejected"})
    expect(page.get_by_role("button", name=f"Rejected {MANY + 2}")).to_be_visible()


def test_those_that_were_selected(view: View, site: Site) -> None:
    room = Room(site, view, 5)
    room.press("jjx")
    room.row(1).get_by_role("checkbox").check()
    room.page.locator(".bulk").get_by_role("button", name="Reject 2 selected").click()
    room.page.locator("dialog").get_by_role("button", name="Cancel").click()
    assert set(room.statuses(1, 2, 3)) == {"proposed"}
    room.page.locator(".bulk").get_by_role("button", name="Reject 2 selected").click()
    room.page.locator("dialog").get_by_role("button", name="Reject").click()
    room.stands({1: "rejected", 2: "proposed", 3: "rejected"})


def test_the_end_of_a_review_and_what_follows(view: View, site: Site) -> None:
    room = Room(site, view, 3)
    page = room.page
    room.press("a")
    room.stands({1: "approved"})
    page.get_by_role("button", name="Finish, reject 2 left").click()
    page.locator("dialog").get_by_role("button", name="Finish").click()
    expect(page.locator("main .badge[data-status=completed]")).to_be_visible()
    expect(page.locator(".stepper [data-status=complete]")).to_have_count(4)
    assert set(room.statuses(2, 3)) == {"rejected"}
    page.locator(".stepper").get_by_role("button", name="publish").click()
    expect(page.locator("main section")).to_contain_text("publish")
    page.get_by_text("What happened").click()
    expect(page.locator(".story")).to_contain_text("job.completed")


def test_a_list_of_its_own_for_each_status(view: View, site: Site) -> None:
    room = Room(site, view, 6)
    page = room.page
    room.press("aar")
    room.stands({3: "rejected"})
    page.get_by_role("button", name="Approved 2").click()
    expect(page.locator(".review li")).to_have_count(2)
    page.get_by_role("button", name="All 6").click()
    page.get_by_label("Filter by text").fill("number 0004")
    expect(page.locator(".review li")).to_have_count(1)
    expect(room.row(4)).to_be_visible()


def test_long_reviews_grow_as_one_goes(view: View, site: Site) -> None:
    room = Room(site, view, 1500)
    assert room.page.locator(".review li").count() < 1500
    for _ in range(129):
        room.press("j")
    expect(room.row(130)).to_be_focused()
    room.press("a")
    room.stands({130: "approved"})


def test_who_only_reads_decides_nothing(browser: Browser, tmp_path: Path) -> None:
    with (
        running(tmp_path / "site", DASHBOARD="read-only") as site,
        viewing(browser, site.url) as view,
    ):
        room = Room(site, view, 2)
        room.press("aerux")
        deeds = room.page.locator("main button", has_text=re.compile("Approve$|Reject$|Cancel"))
        expect(deeds).to_have_count(0)
        assert room.statuses(1, 2) == ["proposed", "proposed"]
        room.somebody("approve", 2)
        expect(room.row(2)).to_have_attribute("data-status", "approved")
