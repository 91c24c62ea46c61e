"""The playground: what is submitted there, is seen there while it happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.browser.view import View


def write(view: View, task: str, payload: dict[str, object]) -> None:
    """Fill the form in."""
    page = view.go(f"/ui/playground?task={task}", "Playground")
    page.get_by_label("Payload").fill(json.dumps(payload))


def submit(view: View) -> str:
    """Press the button; the job's id."""
    view.page.get_by_role("button", name="Submit").click()
    link = view.page.locator("main a[href^='/ui/jobs/']").first
    expect(link).to_be_visible()
    return str(link.get_attribute("href")).rpartition("/")[2]


def test_an_echo_arrives_and_the_result_with_it(view: View, site: Site) -> None:
    write(view, "chat", {"text": "hello from the page"})
    job_id = submit(view)
    echo = "echo(task=chat): {'text': 'hello from the page'}"
    expect(view.page.locator(".output")).to_contain_text(echo)
    expect(view.page.locator("main .badge").first).to_have_text("done")
    assert site.job(job_id)["payload"] == {"text": "hello from the page"}


def test_tokens_are_joined_while_they_come(view: View, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    write(view, "plan", {"text": "one two three four", "gate": str(gate)})
    submit(view)
    said = view.page.locator(".output .flow").last
    for words in ("one", "one two", "one two three"):
        expect(said).to_have_text(re.compile(rf"^{words}$"))  # the next waits for us
        expect(view.page.locator("main .badge").first).to_have_text("running")
        with gate.open("a") as file:
            file.write("\n")
    with gate.open("a") as file:
        file.write("\n")
    expect(said).to_have_text("one two three four")
    expect(view.page.locator("main .badge").first).to_have_text("done")


def test_a_running_job_is_canceled(view: View, site: Site, tmp_path: Path) -> None:
    write(view, "code", {"wait": str(tmp_path / "never")})
    job_id = submit(view)
    expect(view.page.locator(".output")).to_contain_text("waiting")
    view.page.get_by_role("button", name="Cancel", exact=True).click()
    expect(view.page.locator("main .badge").first).to_have_text("canceled")
    assert site.job(job_id)["status"] == "canceled"


def test_what_is_no_json_object_is_not_submitted(view: View) -> None:
    page = view.go("/ui/playground", "Playground")
    for wrong in ('{"text": ', "[1, 2]", "null"):
        page.get_by_label("Payload").fill(wrong)
        expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_label("Payload").fill('{"text": "x"}')
    expect(page.get_by_role("button", name="Submit")).to_be_enabled()
