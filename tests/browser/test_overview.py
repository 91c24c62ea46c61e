"""The overview: what happens is seen at once, and looking costs Redis the same for one or ten."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.browser.view import View, until

SOON_S = 1.0
PAGES = 10
LOOK_S = 4.0
#: How often the same is measured: a machine that stands still meanwhile makes a number too small,
#: and one that catches up afterwards too large.
LOOKS = 3
#: Notes when a job's row is first there, by the browser's clock, which is the machine's.
_WATCH = """
window.seen = {};
const look = () => {
  for (const link of document.querySelectorAll("main a[href^='/ui/jobs/']"))
    window.seen[link.getAttribute("href").slice(9)] ??= Date.now();
};
new MutationObserver(look).observe(document, {childList: true, subtree: true, attributes: true});
"""


def test_an_event_is_there_within_a_second(view: View, site: Site) -> None:
    view.page.add_init_script(_WATCH)
    page = view.go("/ui")
    view.is_live()
    took: list[float] = []
    for number in range(7):
        sent = time.time()
        job_id = site.submit("chat", {"number": number})
        seen = until(page, lambda job_id=job_id: page.evaluate("(id) => seen[id] ?? 0", job_id))
        took.append(seen / 1000 - sent)
    assert statistics.median(took) < SOON_S, took


def test_charts_go_on_by_themselves(view: View, site: Site) -> None:
    page = view.go("/ui")
    view.is_live()
    drawn = page.locator("main canvas")
    expect(drawn.first).to_be_visible()
    before = drawn.first.evaluate("(node) => node.toDataURL()")
    site.submit("chat", {"text": "one more"})
    until(page, lambda: drawn.first.evaluate("(node) => node.toDataURL()") != before)


def test_live_updates_are_paused_and_go_on(view: View, site: Site) -> None:
    page = view.go("/ui")
    view.is_live()
    page.keyboard.press(".")
    live = page.locator("button.live")
    expect(live).to_contain_text("Paused")
    expect(live).to_have_attribute("aria-pressed", "true")
    job_id = site.submit("chat", {"text": "while nobody looks"})
    site.ended(job_id)
    other = view.context.new_page()  # time for a page that is not paused to show it
    other.goto(f"{view.base}/ui")
    expect(other.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(1)
    other.close()
    expect(page.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(0)
    live.click()
    expect(live).to_contain_text("Live")
    expect(page.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(1)


def test_ten_pages_cost_redis_what_one_does(open_view: Callable[..., View], site: Site) -> None:
    views = [open_view()]
    views[0].go("/ui")
    views[0].is_live()
    one = max(_calls_a_second(views[0], site) for _ in range(LOOKS))
    for _ in range(PAGES - 1):
        views.append(open_view())
        views[-1].go("/ui")
        views[-1].is_live()
    for view in views:
        view.settled()
    ten = min(_calls_a_second(views[0], site) for _ in range(LOOKS))
    assert ten < one * 1.25 + 2, (one, ten)


def _calls_a_second(view: View, site: Site) -> float:
    """Commands that Redis was given, all but those of this question."""
    before, began = _calls(site), time.monotonic()
    view.page.wait_for_timeout(LOOK_S * 1000)  # what is measured is a time
    return (_calls(site) - before) / (time.monotonic() - began)


def _calls(site: Site) -> int:
    stats: Any = site.redis.client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name != "cmdstat_info")
