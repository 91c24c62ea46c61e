"""The playground: submit a job and watch it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.support.dashboard_page import DashboardPage
from tests.browser.support.live_server import LiveServer


def fill_form(dashboard: DashboardPage, task: str, payload: dict[str, object]) -> None:
    """Open the playground and enter a payload."""
    page = dashboard.open(f"/ui/playground?task={task}", "Playground")
    page.get_by_label("Payload").fill(json.dumps(payload))


def submit(dashboard: DashboardPage) -> str:
    """Submit the form; returns the id of the job."""
    dashboard.page.get_by_role("button", name="Submit").click()
    link = dashboard.page.locator("main a[href^='/ui/jobs/']").first
    expect(link).to_be_visible()
    return str(link.get_attribute("href")).rpartition("/")[2]


def test_output_and_result_of_a_job(dashboard: DashboardPage, server: LiveServer) -> None:
    fill_form(dashboard, "chat", {"text": "hello from the page"})
    job_id = submit(dashboard)
    echo = "echo(task=chat): {'text': 'hello from the page'}"
    expect(dashboard.page.locator(".output")).to_contain_text(echo)
    expect(dashboard.page.locator("main .badge").first).to_have_text("done")
    assert server.get_job(job_id)["payload"] == {"text": "hello from the page"}


def test_tokens_appear_as_they_arrive(dashboard: DashboardPage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    fill_form(dashboard, "plan", {"text": "one two three four", "gate": str(gate)})
    submit(dashboard)
    output = dashboard.page.locator(".output .text-pane").last
    for text in ("one", "one two", "one two three"):
        expect(output).to_have_text(re.compile(rf"^{text}$"))  # the next word waits for the gate
        expect(dashboard.page.locator("main .badge").first).to_have_text("running")
        with gate.open("a") as file:
            file.write("\n")
    with gate.open("a") as file:
        file.write("\n")
    expect(output).to_have_text("one two three four")
    expect(dashboard.page.locator("main .badge").first).to_have_text("done")


def test_cancel_a_running_job(dashboard: DashboardPage, server: LiveServer, tmp_path: Path) -> None:
    fill_form(dashboard, "code", {"wait": str(tmp_path / "never")})
    job_id = submit(dashboard)
    expect(dashboard.page.locator(".output")).to_contain_text("waiting")
    dashboard.page.get_by_role("button", name="Cancel", exact=True).click()
    expect(dashboard.page.locator("main .badge").first).to_have_text("canceled")
    assert server.get_job(job_id)["status"] == "canceled"


def test_invalid_payload_cannot_be_submitted(dashboard: DashboardPage) -> None:
    page = dashboard.open("/ui/playground", "Playground")
    for invalid in ('{"text": ', "[1, 2]", "null"):
        page.get_by_label("Payload").fill(invalid)
        expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_label("Payload").fill('{"text": "x"}')
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()
