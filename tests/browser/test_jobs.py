"""The list of five thousand jobs: search, filters, scrolling, export, responsiveness."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.support.dashboard_page import DashboardPage, wait_for
from tests.browser.support.live_server import LiveServer, run_server
from tests.support.processes.worker import wait_until

JOB_COUNT = 5000
NEEDLE_TEXT = "the one with the needle"
#: Longest allowed task that blocks the page, on a busy machine.
MAX_BLOCKED_MS = 500
#: The best of several runs counts: slower ones were slowed down by other processes.
RUNS = 3
_OBSERVE_LONG_TASKS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({type: "longtask"});
"""


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server whose backlog limit is above the number of jobs."""
    with run_server(tmp_path_factory.mktemp("server"), BACKPRESSURE_MAX_BACKLOG="10000") as server:
        yield server


@pytest.fixture(scope="module")
def needle(server: LiveServer) -> str:
    """Submit five thousand jobs, three of which fail; returns the id of the needle."""
    connection = http.client.HTTPConnection("127.0.0.1", server.gateway.port, timeout=60)

    def submit(task: str, payload: dict[str, object]) -> str:
        body = json.dumps({"task": task, "payload": payload})
        connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return str(answer["job_id"])

    for number in range(3):
        submit("code", {"fail": f"failure {number}"})
    for number in range(JOB_COUNT // 2):
        submit("chat", {"number": number})
    needle_id = submit("chat", {"text": NEEDLE_TEXT})
    for number in range(JOB_COUNT // 2, JOB_COUNT - 4):
        submit("chat", {"number": number})
    connection.close()
    unfinished = "/v1/jobs?status=queued&status=running&limit=1"
    wait_until(lambda: not server.ask("GET", unfinished)[1]["jobs"], 120)
    return needle_id


_FIRST_ROW_IS_VISIBLE = """() => {
  const { top, bottom } = document.querySelector("tbody a[data-nav]").getBoundingClientRect();
  return top >= 0 && bottom <= window.innerHeight;
}"""


def test_scrolling_through_all_jobs_does_not_block_the_page(
    dashboard: DashboardPage, needle: str
) -> None:
    dashboard.page.add_init_script(_OBSERVE_LONG_TASKS)  # starts again on each load
    page = dashboard.page
    status = page.locator("main .list-status")

    def scroll_down() -> bool:
        page.mouse.wheel(0, 4000)
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        return bool(re.match(r"5,000 jobs", status.text_content() or ""))

    blocked_ms: list[float] = []
    while len(blocked_ms) < RUNS and not any(duration < MAX_BLOCKED_MS for duration in blocked_ms):
        dashboard.open("/ui/jobs", "Jobs")
        expect(status).to_have_text(re.compile(r"^\d+\+ jobs"))
        wait_for(page, scroll_down, 120)
        assert page.locator("tbody tr").count() < 150  # only the rows near the viewport
        blocked_ms.append(page.evaluate("window.longest"))
    assert min(blocked_ms) < MAX_BLOCKED_MS

    def scroll_to_top() -> bool:  # a wheel event may still be pending
        page.evaluate("window.scrollTo(0, 0)")
        return bool(page.evaluate(_FIRST_ROW_IS_VISIBLE))

    wait_for(page, scroll_to_top, 30)


def test_filters_are_in_the_address(dashboard: DashboardPage, needle: str) -> None:
    page = dashboard.open("/ui/jobs", "Jobs")
    page.get_by_role("group", name="Status").get_by_role("button", name="error").click()
    rows = page.locator("tbody a[data-nav]")
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile(r"\?status=error$"))
    page.reload(wait_until="domcontentloaded")
    expect(rows).to_have_count(3)
    expect(page.locator("tbody").first).to_contain_text("failure")
    page.get_by_role("group", name="Task").get_by_role("button", name="chat").click()
    expect(rows).to_have_count(0)


def test_search_by_text_and_by_id(dashboard: DashboardPage, needle: str) -> None:
    page = dashboard.open("/ui/jobs", "Jobs")
    expect(page.locator("tbody a[data-nav]").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type(NEEDLE_TEXT)
    rows = page.locator("tbody a[data-nav]")
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_attribute("href", f"/ui/jobs/{needle}")
    page.get_by_label("Search").fill(needle[:13])  # the beginning of an id
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_attribute("href", f"/ui/jobs/{needle}")


def test_keyboard_navigation_of_rows(dashboard: DashboardPage, needle: str) -> None:
    page = dashboard.open("/ui/jobs", "Jobs")
    rows = page.locator("tbody a[data-nav]")
    expect(rows.first).to_be_visible()
    page.keyboard.press("j")
    expect(rows.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(rows.nth(0)).to_be_focused()
    href = rows.nth(0).get_attribute("href")
    page.keyboard.press("Enter")
    dashboard.wait_for_page(re.compile("^Job"))
    expect(page).to_have_url(re.compile(f"{href}$"))


def test_new_jobs_appear_live(dashboard: DashboardPage, server: LiveServer, needle: str) -> None:
    page = dashboard.open("/ui/jobs", "Jobs")
    expect(page.locator("tbody a[data-nav]").first).to_be_visible()
    dashboard.wait_until_live()
    job_id = server.submit("chat", {"text": "new"})
    first = page.locator("tbody tr:has(a[data-nav])").first
    expect(first.locator("a")).to_have_attribute("href", f"/ui/jobs/{job_id}")
    expect(first).to_contain_text("done")


def test_export_as_csv_and_json(dashboard: DashboardPage, needle: str) -> None:
    page = dashboard.open("/ui/jobs?status=error", "Jobs")
    expect(page.locator("tbody a[data-nav]")).to_have_count(3)
    for name in ("CSV", "JSON"):
        with page.expect_download() as saved:
            page.get_by_role("button", name=f"Export {name}").click()
        content = saved.value.path().read_text()
        if name == "JSON":
            assert len(json.loads(content)) == 3
        else:
            assert len(content.strip().splitlines()) == 4
