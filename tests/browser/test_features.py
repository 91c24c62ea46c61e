"""Pages of workflows, images, BullMQ, webhooks, health and the audit log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.support.dashboard_page import DashboardPage, wait_for
from tests.browser.support.live_server import HANDLERS, QUEUE, LiveServer, run_server
from tests.browser.support.sample_data import COMMIT_LOG
from tests.support.files import photos
from tests.support.processes.features import ReceiverProcess

BIG = 12345678901234567890


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Webhooks to this host are dead-lettered after one attempt; images wait for the file `go`."""
    with run_server(
        tmp_path_factory.mktemp("server"),
        worker_handlers=f"{HANDLERS},tests.browser.support.slow_images",
        WORKFLOW_WEBHOOK_ALLOWED_HOSTS="127.0.0.1",
        WORKFLOW_WEBHOOK_MAX_RETRIES="0",
    ) as server:
        yield server


# -- workflows -------------------------------------------------------------------------------------


def test_start_a_workflow_and_cancel_it_at_its_review(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    page = dashboard.open("/ui/workflows?new=1", "Workflows")
    page.get_by_label("Text", exact=True).fill(
        "Failed jobs go to the dead letter queue (DLQ). The dead letter queue is read by a person."
    )
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".review li")).to_have_count(1)
    expect(page.locator(".review")).to_contain_text("dead letter queue")
    job_id = page.url.rpartition("/")[2]
    assert server.workflow_status(job_id) == "waiting_input"
    page.get_by_role("button", name="Cancel").click()
    page.locator("dialog").get_by_role("button", name="Cancel workflow").click()
    expect(page.locator("main .badge").first).to_have_text("cancelled")
    assert server.workflow_status(job_id) == "cancelled"


def test_start_and_approve_a_workflow_with_options(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    page = dashboard.open("/ui/workflows", "Workflows")
    page.get_by_role("button", name="Start workflow").click()
    page.get_by_label("Workflow", exact=True).select_option("release_notes_v1")
    page.get_by_text("More", exact=True).click()
    steps = {"collect": {"log": COMMIT_LOG}, "publish": {"version": "1.3"}}
    page.get_by_label(re.compile("Step options")).fill(json.dumps(steps))
    page.get_by_role("button", name="Start", exact=True).click()
    dashboard.wait_for_page(re.compile("^wf_"))
    job_id = page.url.rpartition("/")[2]
    rows = page.locator("ol.review > li")
    expect(rows).to_have_count(7)  # advanced to the review automatically
    page.get_by_role("button", name=re.compile("^Approve 7")).click()
    page.get_by_role("dialog").get_by_role("button", name="Approve", exact=True).click()
    # With nothing left to decide the workflow continues, and the approved proposals are applied.
    expect(page.locator("main .badge").first).to_have_text("completed")
    expect(page.locator("ol.review > li[data-status=applied]")).to_have_count(7)
    path = f"/api/workflow/jobs/{job_id}/results?step=publish"
    [notes] = server.ask("GET", path)[1]["result"]["items"]
    assert notes["payload"]["lines"] == 7


def test_invalid_step_options_show_an_error(dashboard: DashboardPage) -> None:
    dashboard.allow_errors("422")
    page = dashboard.open("/ui/workflows?new=1", "Workflows")
    page.get_by_text("More", exact=True).click()
    for options, error in (
        ('{"proposals": {"limit": -1}}', "steps.proposals.limit"),
        ("{", "JSON"),
    ):
        page.get_by_label("Step options").fill(options)
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.locator("form .box.error")).to_contain_text(error)


def test_workflow_list_is_updated_live(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui/workflows", "Workflows")
    dashboard.wait_until_live()
    job_id = server.start_workflow("fix: a leak")
    row = page.locator("tr", has_text=job_id)
    expect(row).to_contain_text("waiting for input")
    page.get_by_role("button", name="Completed").click()
    expect(row).to_have_count(0)
    assert "status=completed" in page.url


def test_run_a_failed_step_again(dashboard: DashboardPage, server: LiveServer) -> None:
    body = {"sources": [{"type": "file", "path": "nowhere.txt"}]}
    _, answer = server.ask("POST", "/api/workflow/jobs", body)
    page = dashboard.open(f"/ui/workflows/{answer['job']['job_id']}")
    page.get_by_role("button", name="Run sources", exact=True).click()
    expect(page.locator("main .box.error")).to_contain_text("source_failed")
    page.get_by_role("button", name="Run sources again").click()
    page.get_by_text("Events", exact=True).click()
    expect(page.locator(".event-list li", has_text="step.failed")).to_have_count(2)


# -- images ----------------------------------------------------------------------------------------


def test_upload_retry_and_delete_images(
    dashboard: DashboardPage, server: LiveServer, tmp_path: Path
) -> None:
    good, bad = tmp_path / "harbour.jpg", tmp_path / "torn.png"
    good.write_bytes(photos.photograph("jpeg"))
    bad.write_bytes(b"\x89PNG\r\n\x1a\nno more")
    page = dashboard.open("/ui/images", "Images")
    page.get_by_label("Images to upload").set_input_files([good, bad])
    harbour, torn = (page.locator(".image-card", has_text=name) for name in ("harbour", "torn"))
    expect(harbour.locator(".badge")).to_have_text("validating")  # the worker waits at this stage
    (server.directory / "data" / "images" / "go").touch()
    expect(harbour.locator(".badge")).to_have_text("processed")
    expect(torn.locator(".badge")).to_have_text("failed")
    expect(torn).to_contain_text("DECODE_FAILED")
    shown = harbour.locator("img")
    wait_for(page, lambda: shown.evaluate("image => image.complete && image.naturalWidth > 0"))

    harbour.click()
    dashboard.wait_for_page("harbour.jpg")
    expect(dashboard.main()).to_contain_text("640 × 480")
    page.go_back()
    torn.click()
    dashboard.wait_for_page("torn.png")
    expect(page.locator(".box.error")).to_contain_text("damaged")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload again").click()
    chooser.value.set_files(good)
    expect(page.locator("main .badge").first).to_have_text("processed")
    expect(page.locator(".full-image img")).to_be_visible()
    image_id = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    dashboard.wait_for_page("Images")
    assert server.ask("GET", f"/v1/images/{image_id}")[0] == 404


# -- BullMQ ----------------------------------------------------------------------------------------


def test_add_find_and_remove_a_bullmq_job(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui/bullmq", "BullMQ")
    form = page.locator("form.card")
    form.get_by_label("Name").fill("render")
    form.get_by_label("Data").fill(f'{{"text": "<i>seen</i>", "number": {BIG}}}')
    form.get_by_role("button", name="Add").click()
    expect(page.locator(".event-list .badge[data-status=completed]")).to_be_visible()  # live
    found = page.locator("section.card").first
    expect(found.locator(".badge")).to_be_visible()
    job_id = re.search(r"job=(\w+)", page.url)[1]  # type: ignore[index]
    assert server.ask("GET", f"/v1/bullmq/{QUEUE}/jobs/{job_id}")[1]["data"]["number"] == BIG
    found.get_by_role("button", name="Refresh").click()
    expect(found.locator(".badge")).to_have_text("completed")
    expect(page.locator(".queue")).to_contain_text(re.compile("[1-9] completed"))
    found.get_by_text("2 keys").first.click()
    expect(found).to_contain_text(str(BIG))
    expect(found).to_contain_text("<i>seen</i>")
    found.get_by_role("button", name="Remove").click()
    page.locator("dialog").get_by_role("button", name="Remove").click()
    expect(found).to_contain_text("removed")
    assert server.ask("GET", f"/v1/bullmq/{QUEUE}/jobs/{job_id}")[0] == 404


def test_unknown_bullmq_job_shows_an_error(dashboard: DashboardPage) -> None:
    dashboard.allow_errors("404")
    page = dashboard.open("/ui/bullmq?job=unknown", "BullMQ")
    expect(page.locator("section.card .box.error").first).to_contain_text("no such job")


# -- webhooks --------------------------------------------------------------------------------------


def test_redrive_a_dead_lettered_webhook(
    dashboard: DashboardPage, server: LiveServer, tmp_path: Path
) -> None:
    receiver = ReceiverProcess(tmp_path, {"/hook": [500, 200]})
    try:
        body = {"webhook": {"url": receiver.url("/hook")}}
        _, answer = server.ask("POST", "/api/workflow/jobs", body)
        page = dashboard.open("/ui/webhooks", "Webhooks")
        dead_letter = page.locator("details.item", has_text=answer["job"]["job_id"])
        expect(dead_letter).to_have_count(1)
        dead_letter.locator("summary").first.click()
        expect(dead_letter).to_contain_text("HTTP 500")
        dead_letter.get_by_role("button", name="Send again").click()
        expect(dead_letter).to_contain_text("sent again: ok")
        first, second = receiver.bodies("/hook")
        assert first == second
    finally:
        receiver.close()


# -- health and audit log --------------------------------------------------------------------------


def test_failed_checks_come_first_and_have_a_fix(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    page = dashboard.open("/ui/doctor", "Health")
    check = page.locator(".check-row", has_text="no append-only file")
    expect(check.locator(".badge")).to_have_text("warn")
    expect(check.locator("code")).to_have_text("redis-cli CONFIG SET appendonly yes")
    first = page.locator(".check-row .badge").first
    expect(first).not_to_have_text("pass")  # failed checks come first


def test_integrity_check_is_recorded_in_the_audit_log(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    page = dashboard.open("/ui/doctor", "Health")
    page.get_by_role("button", name="Check now").click()
    wait_for(page, lambda: server.ask("GET", "/v1/audit")[1]["last"]["ts"] > 0)
    expect(page.locator("section", has_text="Integrity check of all jobs").last).to_contain_text(
        re.compile(r"\d+ jobs? checked in")
    )
    page = dashboard.open("/ui/trail", "Audit log")
    expect(page.locator("tbody tr", has_text="audit.run").first).to_be_visible()
    page.get_by_label("Filter entries").fill("audit.run")
    expect(page.locator("tbody tr", has_text="ui.action")).to_have_count(0)


def test_health_reports_unreachable_redis(
    browser: Browser, tmp_path: Path, open_dashboard: Callable[..., DashboardPage]
) -> None:
    with run_server(tmp_path / "away") as server:
        dashboard = open_dashboard(server.url)
        dashboard.allow_errors("503|ERR_|500")
        page = dashboard.open("/ui/doctor", "Health")
        server.redis.close()
        expect(page.locator(".check-row", has_text="Redis does not answer")).to_be_visible()
