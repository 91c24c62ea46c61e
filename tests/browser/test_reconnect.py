"""After reloads and gateway crashes the page has every event exactly once."""

from __future__ import annotations

import signal
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.support.dashboard_page import DashboardPage
from tests.browser.support.live_server import LiveServer

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
