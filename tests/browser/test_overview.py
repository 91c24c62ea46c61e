"""The overview: live within a second, and ten open pages load Redis as much as one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.browser.support.dashboard_page import DashboardPage, wait_for
from tests.browser.support.live_server import LiveServer

MAX_DELAY_S = 1.0
PAGES = 10
MEASURE_S = 4.0
#: Number of measurements: one is too low if the machine stalls, and too high if it catches up.
MEASUREMENTS = 3
#: Records when the row of a job first appears; browser and test share a clock.
_OBSERVE_ROWS = """
window.seen = {};
const record = () => {
  for (const link of document.querySelectorAll("main a[href^='/ui/jobs/']"))
    window.seen[link.getAttribute("href").slice(9)] ??= Date.now();
};
new MutationObserver(record).observe(document, {childList: true, subtree: true, attributes: true});
"""


def test_new_job_appears_within_a_second(dashboard: DashboardPage, server: LiveServer) -> None:
    dashboard.page.add_init_script(_OBSERVE_ROWS)
    page = dashboard.open("/ui")
    dashboard.wait_until_live()
    delays: list[float] = []
    for number in range(7):
        sent = time.time()
        job_id = server.submit("chat", {"number": number})
        seen = wait_for(page, lambda job_id=job_id: page.evaluate("(id) => seen[id] ?? 0", job_id))
        delays.append(seen / 1000 - sent)
    assert statistics.median(delays) < MAX_DELAY_S, delays


def test_charts_are_updated_live(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui")
    dashboard.wait_until_live()
    canvas = page.locator("main canvas")
    expect(canvas.first).to_be_visible()
    before = canvas.first.evaluate("(node) => node.toDataURL()")
    server.submit("chat", {"text": "one more"})
    wait_for(page, lambda: canvas.first.evaluate("(node) => node.toDataURL()") != before)


def test_pause_and_resume_live_updates(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui")
    dashboard.wait_until_live()
    page.keyboard.press(".")
    live = page.locator("button.live")
    expect(live).to_contain_text("Paused")
    expect(live).to_have_attribute("aria-pressed", "true")
    job_id = server.submit("chat", {"text": "while the page is paused"})
    server.wait_until_ended(job_id)
    other = dashboard.context.new_page()  # a page that is not paused shows it
    other.goto(f"{dashboard.base}/ui")
    expect(other.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(1)
    other.close()
    expect(page.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(0)
    live.click()
    expect(live).to_contain_text("Live")
    expect(page.locator(f"main a[href='/ui/jobs/{job_id}']")).to_have_count(1)


def test_ten_pages_load_redis_as_much_as_one(
    open_dashboard: Callable[..., DashboardPage], server: LiveServer
) -> None:
    dashboards = [open_dashboard()]
    dashboards[0].open("/ui")
    dashboards[0].wait_until_live()
    one = max(_commands_per_second(dashboards[0], server) for _ in range(MEASUREMENTS))
    for _ in range(PAGES - 1):
        dashboards.append(open_dashboard())
        dashboards[-1].open("/ui")
        dashboards[-1].wait_until_live()
    for dashboard in dashboards:
        dashboard.wait_until_idle()
    ten = min(_commands_per_second(dashboards[0], server) for _ in range(MEASUREMENTS))
    assert ten < one * 1.25 + 2, (one, ten)


def _commands_per_second(dashboard: DashboardPage, server: LiveServer) -> float:
    """Redis commands per second, without those of the measurement."""
    before, started = _command_count(server), time.monotonic()
    dashboard.page.wait_for_timeout(MEASURE_S * 1000)  # measures a rate
    return (_command_count(server) - before) / (time.monotonic() - started)


def _command_count(server: LiveServer) -> int:
    stats: Any = server.redis.client.info("commandstats")
    return sum(command["calls"] for name, command in stats.items() if name != "cmdstat_info")
