"""The review of a workflow: decisions, bulk actions, edits, undo, version conflicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.support.dashboard_page import DashboardPage, open_dashboard_page, wait_for
from tests.browser.support.live_server import LiveServer, run_server

#: Console error of Chromium for a 409 response.
CONFLICT = "409"
BULK_COUNT = 25


def commit_log(count: int) -> str:
    return "\n".join(f"fix: number {number:04d} of the leaks" for number in range(1, count + 1))


class ReviewPage:
    """Page object of a review; `decide_elsewhere` acts as another reviewer."""

    def __init__(self, server: LiveServer, dashboard: DashboardPage, count: int) -> None:
        self.server = server
        self.dashboard = dashboard
        self.job_id = server.start_workflow(commit_log(count))
        self.path = f"/api/workflow/jobs/{self.job_id}"
        self.page: Page = dashboard.open(f"/ui/workflows/{self.job_id}", self.job_id)
        expect(self.row(1)).to_be_visible()

    def row(self, number: int) -> Locator:
        return self.page.locator(f".review li[data-id='d_{number:03d}']")

    def press(self, keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def items(self) -> dict[str, Any]:
        _, answer = self.server.ask("GET", f"{self.path}/results?step=draft&limit=500")
        return {item["id"]: item for item in answer["result"]["items"]}

    def statuses(self, *numbers: int) -> list[str]:
        items = self.items()
        return [items[f"d_{number:03d}"]["status"] for number in numbers]

    def wait_for_statuses(self, expected: dict[int, str]) -> None:
        """Wait until the proposals have these statuses in the gateway."""
        wait_for(self.page, lambda: self.statuses(*expected) == list(expected.values()))

    def decide_elsewhere(self, action: str, *numbers: int) -> None:
        """Decide through the API, as another reviewer would."""
        ids = [f"d_{number:03d}" for number in numbers]
        body = {"action": action, "proposal_ids": ids}
        status, answer = self.server.ask("POST", f"{self.path}/proposals/bulk", body)
        assert status == 200, answer

    def open_edit_form(self, number: int, to: str) -> Locator:
        """Open the edit form of a row and change the text."""
        self.row(number).get_by_role("button", name=f"Edit d_{number:03d}").click()
        self.row(number).get_by_label("To", exact=True).fill(to)
        return self.row(number).locator("form")


def test_decide_and_undo_by_keyboard(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 5)
    review.press("aar")
    review.wait_for_statuses({1: "approved", 2: "approved", 3: "rejected", 4: "proposed"})
    expect(review.row(4)).to_have_attribute("aria-current", "true")  # the next undecided one
    expect(review.row(4)).to_be_focused()
    expect(review.row(3).locator(".badge")).to_have_text("rejected")
    review.press("kk0")
    review.wait_for_statuses({2: "proposed"})
    review.press("u")
    review.wait_for_statuses({2: "approved"})
    expect(dashboard.page.get_by_role("button", name="Undecided 2")).to_be_visible()
    review.press("u")
    review.wait_for_statuses({2: "approved", 3: "proposed"})
    expect(review.row(3)).to_be_focused()
    review.press("u")
    review.wait_for_statuses({1: "approved", 2: "proposed"})
    review.press("u")
    review.wait_for_statuses({1: "proposed"})
    review.press("u")
    expect(dashboard.page.locator(".bulk-bar [role=status]")).to_contain_text("nothing of yours")
    review.press("?")
    expect(dashboard.page.locator("dialog")).to_contain_text("approve")


def test_decisions_of_others_appear_live(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 4)
    review.decide_elsewhere("reject", 2, 3)
    expect(review.row(2)).to_have_attribute("data-status", "rejected")
    expect(review.row(3)).to_have_attribute("data-status", "rejected")
    expect(dashboard.page.locator(".bulk-bar [role=status]")).to_have_text(
        "2 items changed by local."
    )
    review.press("a")
    review.wait_for_statuses({1: "approved", 2: "rejected"})


def test_version_conflict_shows_the_current_status(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    dashboard.allow_errors(f"{CONFLICT}|ERR_FAILED")
    dashboard.page.route(
        "**/events/stream*", lambda route: route.abort()
    )  # the page gets no events
    review = ReviewPage(server, dashboard, 3)
    review.decide_elsewhere("reject", 1)
    review.press("a")
    expect(review.row(1).get_by_role("alert")).to_contain_text("Changed by another user")
    expect(review.row(1)).to_have_attribute("data-status", "rejected")
    assert review.statuses(1) == ["rejected"]
    review.row(1).get_by_role("button", name="Approve d_001").click()  # after seeing the conflict
    review.wait_for_statuses({1: "approved"})
    expect(review.row(1).get_by_role("alert")).to_have_count(0)


def test_undo_key_affects_only_own_decisions(dashboard: DashboardPage, server: LiveServer) -> None:
    dashboard.allow_errors(CONFLICT)
    review = ReviewPage(server, dashboard, 3)
    review.press("a")
    review.wait_for_statuses({1: "approved"})
    review.decide_elsewhere("reject", 1)
    expect(review.row(1)).to_have_attribute("data-status", "rejected")
    review.press("u")
    expect(review.page.locator(".bulk-bar [role=status]")).to_contain_text("Not undone")
    assert review.statuses(1) == ["rejected"]
    review.row(1).get_by_role(
        "button", name="Undo d_001"
    ).click()  # undoes the decision of the other reviewer
    review.wait_for_statuses({1: "approved"})


def test_edit_a_proposal(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 3)
    review.press("je")
    form = review.row(2).locator("form")
    form.get_by_label("To", exact=True).fill("<b id=injected>in better words</b>")
    assert review.statuses(2) == ["proposed"]
    review.page.keyboard.press("Control+Enter")
    review.wait_for_statuses({2: "approved"})
    expect(form).to_have_count(0)
    expect(review.row(2)).to_contain_text("<b id=injected>in better words</b>")
    assert review.items()["d_002"]["payload"]["to"] == "<b id=injected>in better words</b>"
    review.press("u")
    review.wait_for_statuses({2: "proposed"})


def test_edit_keeps_typed_text_after_a_version_conflict(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    dashboard.allow_errors(CONFLICT)
    review = ReviewPage(server, dashboard, 3)
    form = review.open_edit_form(1, "my words")
    review.decide_elsewhere("reject", 1, 2)
    expect(review.row(2)).to_have_attribute("data-status", "rejected")  # the page got the event
    form.get_by_role("button", name="Save").click()
    expect(form.get_by_role("alert")).to_contain_text("It is rejected now, version 2")
    assert review.statuses(1) == ["rejected"]
    expect(form.get_by_label("To", exact=True)).to_have_value("my words")
    form.get_by_role("button", name="Save").click()
    review.wait_for_statuses({1: "approved"})
    assert review.items()["d_001"]["payload"]["to"] == "my words"


def test_bulk_decisions_are_confirmed_by_count_and_undone(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    review = ReviewPage(server, dashboard, BULK_COUNT + 2)
    review.press("r")
    review.wait_for_statuses({1: "rejected"})
    page = review.page
    page.get_by_label("Filter by text").fill("number 000")  # nine, one of them decided
    page.locator(".bulk-bar").get_by_role("button", name="Approve 8 shown").click()
    page.locator("dialog").get_by_role("button", name="Approve").click()  # few: no count to type
    review.wait_for_statuses({1: "rejected", 2: "approved", 9: "approved", 10: "proposed"})
    # The page renders its buttons again with the response, which might discard a click.
    expect(page.locator(".bulk-bar")).to_contain_text("8 items approved.")
    page.locator(".bulk-bar").get_by_role("button", name="Undo").click()
    review.wait_for_statuses({1: "rejected", 2: "proposed", 9: "proposed"})
    expect(page.get_by_role("button", name=f"Undecided {BULK_COUNT + 1}")).to_be_visible()

    page.get_by_label("Filter by text").fill("")
    review.row(BULK_COUNT + 2).scroll_into_view_if_needed()
    review.row(BULK_COUNT + 2).get_by_role("button", name="Reject").click()
    page.locator(".bulk-bar").get_by_role("button", name=f"Reject {BULK_COUNT} shown").click()
    dialog = page.locator("dialog")
    yes = dialog.get_by_role("button", name="Reject")
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill(str(BULK_COUNT + 2))
    expect(yes).to_be_disabled()
    dialog.get_by_role("textbox").fill(str(BULK_COUNT))
    yes.click()
    review.wait_for_statuses({2: "rejected", BULK_COUNT: "rejected"})
    expect(page.get_by_role("button", name=f"Rejected {BULK_COUNT + 2}")).to_be_visible()


def test_undone_proposals_return_to_a_list_opened_meanwhile(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    review = ReviewPage(server, dashboard, 4)
    page = review.page
    review.press("aa")
    review.wait_for_statuses({1: "approved", 2: "approved"})
    held: list[Route] = []
    page.route("**/undo", lambda route: held.append(route))
    page.locator(".bulk-bar").get_by_role("button", name="Undo").click()
    wait_for(page, lambda: bool(held))
    page.get_by_label("Filter by text").fill("number")  # opens the list again
    expect(page.locator(".review li")).to_have_count(2)
    held[0].continue_()
    expect(page.locator(".review li")).to_have_count(3)
    expect(page.get_by_role("button", name="Approve 3 shown")).to_be_visible()


def test_bulk_decision_on_selected_proposals(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 5)
    review.press("jjx")
    review.row(1).get_by_role("checkbox").check()
    review.page.locator(".bulk-bar").get_by_role("button", name="Reject 2 selected").click()
    review.page.locator("dialog").get_by_role("button", name="Cancel").click()
    assert set(review.statuses(1, 2, 3)) == {"proposed"}
    review.page.locator(".bulk-bar").get_by_role("button", name="Reject 2 selected").click()
    review.page.locator("dialog").get_by_role("button", name="Reject").click()
    review.wait_for_statuses({1: "rejected", 2: "proposed", 3: "rejected"})


def test_finish_a_review(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 3)
    page = review.page
    review.press("a")
    review.wait_for_statuses({1: "approved"})
    page.get_by_role("button", name="Finish, reject 2 left").click()
    page.locator("dialog").get_by_role("button", name="Finish").click()
    expect(page.locator("main .badge[data-status=completed]")).to_be_visible()
    expect(page.locator(".stepper [data-status=complete]")).to_have_count(4)
    assert set(review.statuses(2, 3)) == {"rejected"}
    page.locator(".stepper").get_by_role("button", name="publish").click()
    expect(page.locator("main section")).to_contain_text("publish")
    page.get_by_text("Events", exact=True).click()
    expect(page.locator(".event-list")).to_contain_text("job.completed")


def test_filter_by_status_and_text(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 6)
    page = review.page
    review.press("aar")
    review.wait_for_statuses({3: "rejected"})
    page.get_by_role("button", name="Approved 2").click()
    expect(page.locator(".review li")).to_have_count(2)
    page.get_by_role("button", name="All 6").click()
    page.get_by_label("Filter by text").fill("number 0004")
    expect(page.locator(".review li")).to_have_count(1)
    expect(review.row(4)).to_be_visible()


def test_long_review_renders_rows_on_demand(dashboard: DashboardPage, server: LiveServer) -> None:
    review = ReviewPage(server, dashboard, 1500)
    assert review.page.locator(".review li").count() < 1500
    for _ in range(129):
        review.press("j")
    expect(review.row(130)).to_be_focused()
    review.press("a")
    review.wait_for_statuses({130: "approved"})


def test_read_only_dashboard_has_no_actions(browser: Browser, tmp_path: Path) -> None:
    with (
        run_server(tmp_path / "server", DASHBOARD="read-only") as server,
        open_dashboard_page(browser, server.url) as dashboard,
    ):
        review = ReviewPage(server, dashboard, 2)
        review.press("aerux")
        action_buttons = review.page.locator(
            "main button", has_text=re.compile("Approve$|Reject$|Cancel")
        )
        expect(action_buttons).to_have_count(0)
        assert review.statuses(1, 2) == ["proposed", "proposed"]
        review.decide_elsewhere("approve", 2)
        expect(review.row(2)).to_have_attribute("data-status", "approved")
