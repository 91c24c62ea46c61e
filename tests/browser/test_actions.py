"""Actions on jobs, dead letters, queues and keys, and the playground."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.browser.support.dashboard_page import DashboardPage, wait_for
from tests.browser.support.live_server import LiveServer
from tests.support.processes.worker import wait_until

BIG = 2**70


def test_retry_submits_the_same_payload(dashboard: DashboardPage, server: LiveServer) -> None:
    job_id = server.submit("chat", {"text": "again", "number": BIG})
    server.wait_until_ended(job_id)
    page = dashboard.open(f"/ui/jobs/{job_id}")
    expect(dashboard.main()).to_contain_text(str(BIG))  # not rounded
    page.get_by_role("button", name="Retry as new").click()
    expect(page).not_to_have_url(re.compile(job_id))
    dashboard.wait_for_page(re.compile("^Job"))
    new_id = page.url.rpartition("/")[2]
    assert server.get_job(new_id)["payload"] == {"text": "again", "number": BIG}


def test_buttons_are_not_replaced_when_nothing_has_changed(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    """A button that is replaced between mouse down and mouse up gets no click."""
    job_id = server.submit("plan", {"text": "x"})
    server.wait_until_ended(job_id)
    requests: list[Route] = []

    def hold_all_but_first(route: Route) -> None:
        requests.append(route)
        if len(requests) == 1:
            route.continue_()

    page = dashboard.page
    page.route(f"**/v1/jobs/{job_id}", hold_all_but_first)
    page.goto(f"{dashboard.base}/ui/jobs/{job_id}")
    link = page.get_by_role("link", name="Clone and edit")
    expect(link).to_be_visible()
    wait_for(page, lambda: len(requests) > 1, 30)  # loads again after the events
    link.evaluate("(node) => (node.dataset.pressed = 'yes')")
    page.locator(".facts dd").first.evaluate("(node) => (node.textContent = 'old')")
    for route in requests[1:]:
        route.continue_()
    expect(page.locator(".facts dd").first).not_to_have_text("old")  # rendered again
    expect(link).to_have_attribute("data-pressed", "yes")


def test_clone_and_edit_submits_the_changed_payload(
    dashboard: DashboardPage, server: LiveServer
) -> None:
    job_id = server.submit("plan", {"text": "first words", "number": BIG})
    server.wait_until_ended(job_id)
    page = dashboard.open(f"/ui/jobs/{job_id}")
    page.get_by_role("link", name="Clone and edit").click()
    dashboard.wait_for_page("Playground")
    editor = page.get_by_label("Payload")
    expect(editor).to_have_value(re.compile(str(BIG)))
    editor.fill(editor.input_value().replace("first", "other"))
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".output .text-pane").last).to_have_text("other words")


def test_cancel_matching_after_typing_the_count(
    dashboard: DashboardPage, server: LiveServer, tmp_path: Path
) -> None:
    kept = server.submit("code", {"wait": str(tmp_path / "go"), "note": "to be kept"})
    jobs = [server.submit("code", {"wait": "/nowhere", "note": "to be ended"}) for _ in range(3)]
    page = dashboard.open("/ui/jobs?q=to+be+ended", "Jobs")
    expect(page.locator("tbody a[data-nav]")).to_have_count(3)
    page.get_by_role("button", name="Cancel matching").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type 3")).fill("3")
    dialog.get_by_role("button", name="Cancel 3 jobs").click()
    for job_id in jobs:
        server.wait_for_status(job_id, "canceled")
    assert server.get_job(kept)["status"] == "running"
    expect(page.locator("tbody .badge[data-status=canceled]")).to_have_count(3)
    (tmp_path / "go").touch()


def test_pause_and_resume_the_queue(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui/queues", "Queues")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("new paper is put in")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(dashboard.main()).to_contain_text("new paper is put in")
    workers = dashboard.context.new_page()
    workers.goto(f"{dashboard.base}/ui/workers")
    expect(workers.locator("main")).to_contain_text("paused")  # the worker has received it
    workers.close()
    job_id = server.submit("chat", {"text": "waits"})
    page.bring_to_front()
    expect(page.locator("main .card").first).to_contain_text(re.compile(r"Waiting\s*1"))
    assert server.get_job(job_id)["status"] == "queued"
    page.get_by_role("button", name="Resume").click()
    server.wait_for_status(job_id, "done")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_create_and_revoke_a_key(dashboard: DashboardPage, server: LiveServer) -> None:
    page = dashboard.open("/ui/keys", "Keys")
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("shop front")
    dialog.get_by_role("button", name="Create key").click()
    shown = page.get_by_role("dialog").locator("pre")
    expect(shown).to_be_visible()
    secret = shown.text_content() or ""
    assert server.ask("GET", "/v1/whoami", key=secret)[0] == 200
    page.keyboard.press("Escape")
    page.reload(wait_until="domcontentloaded")
    dashboard.wait_for_page("Keys")
    expect(dashboard.main()).to_contain_text("shop front")
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke shop front").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Revoke")).click()
    expect(page.locator("main tr").filter(has_text="shop front")).to_have_count(0)
    assert server.ask("GET", "/v1/whoami", key=secret)[0] == 401


def test_redrive_a_group(dashboard: DashboardPage, server: LiveServer, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    payload = {"fail": "printer 10.0.0.7 is out of paper", "fixed_by": str(fixed)}
    failed = [server.submit("code", {**payload, "page": number}) for number in range(3)]
    other = server.submit("code", {"fail": "the lid is open"})
    server.wait_until_ended(*failed, other)
    page = dashboard.open("/ui/dead", "Dead letters")
    group = page.locator("details.group").filter(has_text="out of paper")
    expect(group.locator(".count")).to_have_text("3")
    group.locator("summary").first.click()
    expect(group.locator("tbody tr")).to_have_count(3)

    fixed.touch()
    group.get_by_role("button", name="Redrive all 3").click()
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Redrive", exact=True)
    expect(confirm).to_be_disabled()  # until the count is typed
    dialog.get_by_label(re.compile("Type 3")).fill("3")
    confirm.click()
    expect(page.locator(".toasts")).to_contain_text("3 redriven")
    expect(group).to_have_count(0)
    expect(page.locator("details.group").filter(has_text="the lid is open")).to_have_count(1)
    assert server.ask("GET", "/v1/dlq")[1]["items"][0]["job_id"] == other

    def done() -> bool:
        jobs = server.ask("GET", "/v1/jobs?task=code&status=done&q=out+of+paper")[1]["jobs"]
        return len(jobs) == 3

    wait_until(done)


# -- the playground -------------------------------------------------------------------------------


def fill_form(dashboard: DashboardPage, task: str, payload: dict[str, object]) -> None:
    page = dashboard.open(f"/ui/playground?task={task}", "Playground")
    page.get_by_label("Payload").fill(json.dumps(payload))


def submit(dashboard: DashboardPage) -> str:
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
