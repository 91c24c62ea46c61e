"""Five thousand jobs: found, filtered, read on, exported, and quick all the while."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.site import Site, running
from tests.browser.view import View, until
from tests.worker.processes import wait_until

MANY = 5000
NEEDLE = "the one with the needle"
#: Longest that the page may be deaf to keys, on a machine that does other things as well.
DEAF_MS = 500
#: Of so many readings the quickest counts: what made the others slow was not the page.
TRIES = 3
_WATCH_DEAFNESS = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
}).observe({type: "longtask"});
"""


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One that takes as many as come."""
    with running(tmp_path_factory.mktemp("site"), BACKPRESSURE_MAX_BACKLOG="10000") as site:
        yield site


@pytest.fixture(scope="module")
def needle(site: Site) -> str:
    """Among five thousand, three that failed and one with a needle; its id."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)

    def submit(task: str, payload: dict[str, object]) -> str:
        body = json.dumps({"task": task, "payload": payload})
        connection.request("POST", "/v1/jobs", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return str(answer["job_id"])

    for number in range(3):
        submit("code", {"fail": f"failure {number}"})
    for number in range(MANY // 2):
        submit("chat", {"number": number})
    found = submit("chat", {"text": NEEDLE})
    for number in range(MANY // 2, MANY - 4):
        submit("chat", {"number": number})
    connection.close()
    unfinished = "/v1/jobs?status=queued&status=running&limit=1"
    wait_until(lambda: not site.ask("GET", unfinished)[1]["jobs"], 120)
    return found


_FIRST_ROW_IS_SEEN = """() => {
  const { top, bottom } = document.querySelector("tbody a[data-nav]").getBoundingClientRect();
  return top >= 0 && bottom <= window.innerHeight;
}"""


def test_all_of_them_are_read_on_and_the_page_stays_quick(view: View, needle: str) -> None:
    view.page.add_init_script(_WATCH_DEAFNESS)  # which each opening of the page begins anew
    page = view.page
    told = page.locator("main .told")

    def read_on() -> bool:
        page.mouse.wheel(0, 4000)
        page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        return bool(re.match(r"5,000 jobs", told.text_content() or ""))

    deaf_ms: list[float] = []
    while len(deaf_ms) < TRIES and not any(each < DEAF_MS for each in deaf_ms):
        view.go("/ui/jobs", "Jobs")
        expect(told).to_have_text(re.compile(r"^\d+\+ jobs"))
        until(page, read_on, 120)
        assert page.locator("tbody tr").count() < 150  # those that can be seen, and some more
        deaf_ms.append(page.evaluate("window.longest"))
    assert min(deaf_ms) < DEAF_MS

    def back_at_the_top() -> bool:  # a turn of the wheel may still be on its way
        page.evaluate("window.scrollTo(0, 0)")
        return bool(page.evaluate(_FIRST_ROW_IS_SEEN))

    until(page, back_at_the_top, 30)


def test_filters_are_in_the_address(view: View, needle: str) -> None:
    page = view.go("/ui/jobs", "Jobs")
    page.get_by_role("group", name="Status").get_by_role("button", name="error").click()
    rows = page.locator("tbody a[data-nav]")
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile(r"\?status=error$"))
    page.reload(wait_until="domcontentloaded")
    expect(rows).to_have_count(3)
    expect(page.locator("tbody").first).to_contain_text("failure")
    page.get_by_role("group", name="Task").get_by_role("button", name="chat").click()
    expect(rows).to_have_count(0)


def test_words_find_the_one_among_thousands(view: View, needle: str) -> None:
    page = view.go("/ui/jobs", "Jobs")
    expect(page.locator("tbody a[data-nav]").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type(NEEDLE)
    rows = page.locator("tbody a[data-nav]")
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_attribute("href", f"/ui/jobs/{needle}")
    page.get_by_label("Search").fill(needle[:13])  # and so does the beginning of an id
    expect(rows).to_have_count(1)
    expect(rows.first).to_have_attribute("href", f"/ui/jobs/{needle}")


def test_rows_are_walked_and_opened_by_keyboard(view: View, needle: str) -> None:
    page = view.go("/ui/jobs", "Jobs")
    rows = page.locator("tbody a[data-nav]")
    expect(rows.first).to_be_visible()
    page.keyboard.press("j")
    expect(rows.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(rows.nth(0)).to_be_focused()
    wanted = rows.nth(0).get_attribute("href")
    page.keyboard.press("Enter")
    view.ready(re.compile("^Job"))
    expect(page).to_have_url(re.compile(f"{wanted}$"))


def test_new_ones_come_by_themselves(view: View, site: Site, needle: str) -> None:
    page = view.go("/ui/jobs", "Jobs")
    expect(page.locator("tbody a[data-nav]").first).to_be_visible()
    view.is_live()
    job_id = site.submit("chat", {"text": "new"})
    first = page.locator("tbody tr:has(a[data-nav])").first
    expect(first.locator("a")).to_have_attribute("href", f"/ui/jobs/{job_id}")
    expect(first).to_contain_text("done")


def test_what_fits_is_saved_as_csv_and_json(view: View, needle: str) -> None:
    page = view.go("/ui/jobs?status=error", "Jobs")
    expect(page.locator("tbody a[data-nav]")).to_have_count(3)
    for name in ("CSV", "JSON"):
        with page.expect_download() as saved:
            page.get_by_role("button", name=name, exact=True).click()
        words = saved.value.path().read_text()
        if name == "JSON":
            assert len(json.loads(words)) == 3
        else:
            assert len(words.strip().splitlines()) == 4
