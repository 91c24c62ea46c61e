"""Live updates: within a second, cheap for Redis, and complete after reloads and crashes."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable
from pathlib import Path
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
    before, started = _command_count(server), time.monotonic()
    dashboard.page.wait_for_timeout(MEASURE_S * 1000)  # measures a rate
    return (_command_count(server) - before) / (time.monotonic() - started)


def _command_count(server: LiveServer) -> int:
    stats: Any = server.redis.client.info("commandstats")
    return sum(command["calls"] for name, command in stats.items() if name != "cmdstat_info")


# -- after reloads and gateway crashes ---------------------------------------------------------


WORDS = "one two three four five six"
#: Console errors of Chromium while the gateway is down.
CONNECTION_ERRORS = r"net::ERR_"


class Gate:
    """A file that makes a `plan` job emit its words one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def open(self, words: int) -> None:
        with self.path.open("a") as file:
            file.write("\n" * words)


def test_reload_shows_all_output(
    dashboard: DashboardPage, server: LiveServer, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    job_id = server.submit("plan", {"text": WORDS, "gate": str(gate.path)})
    page = dashboard.open(f"/ui/jobs/{job_id}")
    output = page.locator(".output pre.text-pane").last
    gate.open(2)
    expect(output).to_have_text("one two three")
    page.reload(wait_until="domcontentloaded")
    expect(output).to_have_text("one two three")
    gate.open(4)
    expect(output).to_have_text(WORDS)
    expect(page.locator("main .badge").first).to_have_text("done")


def test_pages_reconnect_after_a_gateway_crash(
    open_dashboard: object, server: LiveServer, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    job_id = server.submit("plan", {"text": WORDS, "gate": str(gate.path)})
    ended_id = server.submit("code", {"wait": str(tmp_path / "go")})
    job_page: DashboardPage = open_dashboard()  # type: ignore[operator]
    overview: DashboardPage = open_dashboard()  # type: ignore[operator]
    job_page.open(f"/ui/jobs/{job_id}")
    overview.open("/ui")
    overview.wait_until_live()
    output = job_page.page.locator(".output pre.text-pane").last
    gate.open(1)
    expect(output).to_have_text("one two")
    row, ended = (
        overview.page.locator(f"main tr:has(a[href='/ui/jobs/{each}'])")
        for each in (job_id, ended_id)
    )
    expect(row).to_contain_text("running")
    expect(ended).to_contain_text("running")

    for dashboard in (job_page, overview):
        dashboard.allow_errors(CONNECTION_ERRORS)
    server.gateway.stop(signal.SIGKILL)
    live = overview.page.locator("button.live")
    expect(live).to_contain_text("Reconnecting")
    gate.open(2)  # the worker emits while the gateway is down, and ends the other job
    (tmp_path / "go").touch()
    server.open_gateway(server.gateway.port)

    expect(output).to_have_text("one two three four")
    expect(live).to_contain_text("Live")
    expect(ended).to_contain_text("done")
    gate.open(3)
    expect(output).to_have_text(WORDS)
    expect(job_page.page.locator("main .badge").first).to_have_text("done")
    expect(row).to_contain_text("done")
    after = server.submit("chat", {"text": "after"})
    expect(overview.page.locator(f"main a[href='/ui/jobs/{after}']")).to_have_count(1)
