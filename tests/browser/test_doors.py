"""Workflows started, images, BullMQ's queues, webhooks, doctor and trail, as a person uses them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests import photos
from tests.browser.site import QUEUE, Site, running
from tests.browser.view import View, until
from tests.process.test_workflow_webhooks import ReceiverProcess

BIG = 12345678901234567890


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One whose webhooks may go to this machine, and are given up at once."""
    with running(
        tmp_path_factory.mktemp("site"),
        WORKFLOW_WEBHOOK_ALLOWED_HOSTS="127.0.0.1",
        WORKFLOW_WEBHOOK_MAX_RETRIES="0",
    ) as site:
        yield site


# -- workflows -------------------------------------------------------------------------------------


def test_a_workflow_is_started_and_seen_up_to_its_review(view: View, site: Site) -> None:
    page = view.go("/ui/workflows?new=1", "Workflows")
    page.get_by_label("Text", exact=True).fill(
        "Failed jobs go to the dead letter queue (DLQ). The dead letter queue is read by a person."
    )
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".review li")).to_have_count(1)
    expect(page.locator(".review")).to_contain_text("dead letter queue")
    job_id = page.url.rpartition("/")[2]
    assert site.workflow_status(job_id) == "waiting_input"
    page.get_by_role("button", name="Cancel").click()
    page.locator("dialog").get_by_role("button", name="Cancel it").click()
    expect(page.locator("main .badge").first).to_have_text("cancelled")
    assert site.workflow_status(job_id) == "cancelled"


def test_options_that_do_not_fit_are_told(view: View) -> None:
    view.expect_faults("422")
    page = view.go("/ui/workflows?new=1", "Workflows")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Options of steps").fill('{"proposals": {"limit": -1}}')
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("form .box.error")).to_contain_text("steps.proposals.limit")
    page.get_by_label("Options of steps").fill("{")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("form .box.error")).to_contain_text("JSON")


def test_the_list_follows(view: View, site: Site) -> None:
    page = view.go("/ui/workflows", "Workflows")
    view.is_live()
    job_id = site.workflow("fix: a leak")
    row = page.locator("tr", has_text=job_id)
    expect(row).to_contain_text("waits for you")
    page.get_by_role("button", name="Completed").click()
    expect(row).to_have_count(0)
    assert "status=completed" in page.url


def test_a_step_that_failed_is_run_again(view: View, site: Site) -> None:
    body = {"sources": [{"type": "file", "path": "nowhere.txt"}]}
    _, answer = site.ask("POST", "/api/workflow/jobs", body)
    page = view.go(f"/ui/workflows/{answer['job']['job_id']}")
    page.get_by_role("button", name="Run sources", exact=True).click()
    expect(page.locator("main .box.error")).to_contain_text("source_failed")
    page.get_by_role("button", name="Run sources again").click()
    page.get_by_text("What happened").click()
    expect(page.locator(".story li", has_text="step.failed")).to_have_count(2)


# -- images ----------------------------------------------------------------------------------------


def test_images_are_uploaded_and_looked_at(view: View, site: Site, tmp_path: Path) -> None:
    good, bad = tmp_path / "harbour.jpg", tmp_path / "torn.png"
    good.write_bytes(photos.photograph("jpeg"))
    bad.write_bytes(b"\x89PNG\r\n\x1a\nno more")
    page = view.go("/ui/images", "Images")
    page.get_by_label("Images to upload").set_input_files([good, bad])
    harbour, torn = (page.locator(".shot", has_text=name) for name in ("harbour", "torn"))
    expect(harbour.locator(".badge")).to_have_text("processed")
    expect(torn.locator(".badge")).to_have_text("failed")
    expect(torn).to_contain_text("DECODE_FAILED")
    shown = harbour.locator("img")
    until(page, lambda: shown.evaluate("image => image.complete && image.naturalWidth > 0"))

    torn.click()
    view.ready("torn.png")
    expect(page.locator(".box.error")).to_contain_text("damaged")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Upload it again").click()
    chooser.value.set_files(good)
    expect(page.locator("main .badge").first).to_have_text("processed")
    expect(page.locator(".big img")).to_be_visible()
    image_id = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    view.ready("Images")
    assert site.ask("GET", f"/v1/images/{image_id}")[0] == 404


# -- queues of BullMQ ------------------------------------------------------------------------------


def test_a_job_for_bullmq(view: View, site: Site) -> None:
    page = view.go("/ui/bullmq", "BullMQ")
    form = page.locator("form.card")
    form.get_by_label("Name").fill("render")
    form.get_by_label("Data").fill(f'{{"text": "<i>seen</i>", "number": {BIG}}}')
    form.get_by_role("button", name="Add").click()
    expect(page.locator(".story .badge[data-status=completed]")).to_be_visible()  # live
    found = page.locator("section.card").first
    expect(found.locator(".badge")).to_be_visible()
    job_id = re.search(r"job=(\w+)", page.url)[1]  # type: ignore[index]
    assert site.ask("GET", f"/v1/bullmq/{QUEUE}/jobs/{job_id}")[1]["data"]["number"] == BIG
    found.get_by_role("button", name="Again").click()
    expect(found.locator(".badge")).to_have_text("completed")
    expect(page.locator(".queue")).to_contain_text(re.compile("[1-9] completed"))
    found.get_by_text("2 keys").first.click()
    expect(found).to_contain_text(str(BIG))
    expect(found).to_contain_text("<i>seen</i>")
    found.get_by_role("button", name="Remove").click()
    page.locator("dialog").get_by_role("button", name="Remove").click()
    expect(found).to_contain_text("removed")
    assert site.ask("GET", f"/v1/bullmq/{QUEUE}/jobs/{job_id}")[0] == 404


def test_a_job_that_is_not_there(view: View) -> None:
    view.expect_faults("404")
    page = view.go("/ui/bullmq?job=nobody", "BullMQ")
    expect(page.locator("section.card .box.error").first).to_contain_text("no such job")


# -- webhooks --------------------------------------------------------------------------------------


def test_webhooks_that_were_given_up_are_sent_again(view: View, site: Site, tmp_path: Path) -> None:
    receiver = ReceiverProcess(tmp_path, {"/hook": [500, 200]})
    try:
        body = {"webhook": {"url": receiver.url("/hook")}}
        _, answer = site.ask("POST", "/api/workflow/jobs", body)
        page = view.go("/ui/webhooks", "Webhooks")
        letter = page.locator("details.item", has_text=answer["job"]["job_id"])
        expect(letter).to_have_count(1)
        letter.locator("summary").first.click()
        expect(letter).to_contain_text("HTTP 500")
        letter.get_by_role("button", name="Send again").click()
        expect(letter).to_contain_text("sent again: ok")
        first, second = receiver.bodies("/hook")
        assert first == second
    finally:
        receiver.close()


# -- doctor and trail ------------------------------------------------------------------------------


def test_each_fault_has_its_fix(view: View, site: Site) -> None:
    page = view.go("/ui/doctor", "Doctor")
    fault = page.locator(".part", has_text="no append-only file")
    expect(fault.locator(".badge")).to_have_text("warn")
    expect(fault.locator("code")).to_have_text("redis-cli CONFIG SET appendonly yes")
    first = page.locator(".part .badge").first
    expect(first).not_to_have_text("pass")  # what is wrong comes first


def test_an_audit_from_the_page_is_in_the_trail(view: View, site: Site) -> None:
    page = view.go("/ui/doctor", "Doctor")
    page.get_by_role("button", name="Audit now").click()
    until(page, lambda: site.ask("GET", "/v1/audit")[1]["last"]["ts"] > 0)
    expect(page.locator("section", has_text="Audit of all jobs").last).to_contain_text(
        re.compile(r"\d+ jobs looked at in")
    )
    page = view.go("/ui/trail", "Trail")
    expect(page.locator("tbody tr", has_text="audit.run").first).to_be_visible()
    page.get_by_label("Filter what is shown").fill("audit.run")
    expect(page.locator("tbody tr", has_text="ui.action")).to_have_count(0)


def test_while_redis_is_away_the_doctor_says_so(
    browser: Browser, tmp_path: Path, open_view: Callable[..., View]
) -> None:
    with running(tmp_path / "away") as site:
        view = open_view(site.url)
        view.expect_faults("503|ERR_|500")
        page = view.go("/ui/doctor", "Doctor")
        site.redis.close()
        expect(page.locator(".part", has_text="Redis does not answer")).to_be_visible()
