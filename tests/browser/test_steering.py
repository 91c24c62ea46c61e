"""What an operator does with jobs, the queue and keys, by pressing buttons."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.browser.site import Site
from tests.browser.view import View, until

BIG = 2**70


def test_a_job_is_done_again_as_it_was(view: View, site: Site) -> None:
    job_id = site.submit("chat", {"text": "again", "number": BIG})
    site.ended(job_id)
    page = view.go(f"/ui/jobs/{job_id}")
    expect(view.main()).to_contain_text(str(BIG))  # not as a browser's numbers would have it
    page.get_by_role("button", name="Retry as new").click()
    expect(page).not_to_have_url(re.compile(job_id))
    view.ready(re.compile("^Job"))
    new_id = page.url.rpartition("/")[2]
    assert site.job(new_id)["payload"] == {"text": "again", "number": BIG}


def test_buttons_stay_the_same_while_a_page_is_told_nothing_new(view: View, site: Site) -> None:
    """One that is replaced between its press and its release does nothing."""
    job_id = site.submit("plan", {"text": "x"})
    site.ended(job_id)
    asked: list[Route] = []

    def hold_all_but_the_first(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:
            route.continue_()

    page = view.page
    page.route(f"**/v1/jobs/{job_id}", hold_all_but_the_first)
    page.goto(f"{view.base}/ui/jobs/{job_id}")
    link = page.get_by_role("link", name="Clone and edit")
    expect(link).to_be_visible()
    until(page, lambda: len(asked) > 1, 30)  # its events have come, and it looks again
    link.evaluate("(node) => (node.dataset.pressed = 'yes')")
    page.locator(".facts dd").first.evaluate("(node) => (node.textContent = 'old')")
    for route in asked[1:]:
        route.continue_()
    expect(page.locator(".facts dd").first).not_to_have_text("old")  # it has been shown again
    expect(link).to_have_attribute("data-pressed", "yes")


def test_a_job_is_edited_and_done_again(view: View, site: Site) -> None:
    job_id = site.submit("plan", {"text": "first words", "number": BIG})
    site.ended(job_id)
    page = view.go(f"/ui/jobs/{job_id}")
    page.get_by_role("link", name="Clone and edit").click()
    view.ready("Playground")
    editor = page.get_by_label("Payload")
    expect(editor).to_have_value(re.compile(str(BIG)))
    editor.fill(editor.input_value().replace("first", "other"))
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".output .flow").last).to_have_text("other words")


def test_all_that_match_are_canceled_once_their_number_is_typed(
    view: View, site: Site, tmp_path: Path
) -> None:
    kept = site.submit("code", {"wait": str(tmp_path / "go"), "note": "to be kept"})
    jobs = [site.submit("code", {"wait": "/nowhere", "note": "to be ended"}) for _ in range(3)]
    page = view.go("/ui/jobs?q=to+be+ended", "Jobs")
    expect(page.locator("tbody a[data-nav]")).to_have_count(3)
    page.get_by_role("button", name="Cancel matching").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(re.compile("Type 3")).fill("3")
    dialog.get_by_role("button", name="Cancel them").click()
    for job_id in jobs:
        site.reaches(job_id, "canceled")
    assert site.job(kept)["status"] == "running"
    expect(page.locator("tbody .badge[data-status=canceled]")).to_have_count(3)
    (tmp_path / "go").touch()


def test_the_queue_is_paused_and_goes_on(view: View, site: Site) -> None:
    page = view.go("/ui/queues", "Queues")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("new paper is put in")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(view.main()).to_contain_text("new paper is put in")
    workers = view.context.new_page()
    workers.goto(f"{view.base}/ui/workers")
    expect(workers.locator("main")).to_contain_text("paused")  # it has heard of it
    workers.close()
    job_id = site.submit("chat", {"text": "waits"})
    page.bring_to_front()
    expect(page.locator("main .card").first).to_contain_text(re.compile(r"Waiting\s*1"))
    assert site.job(job_id)["status"] == "queued"
    page.get_by_role("button", name="Resume").click()
    site.reaches(job_id, "done")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_a_key_is_made_shown_once_and_revoked(view: View, site: Site) -> None:
    page = view.go("/ui/keys", "Keys")
    page.get_by_role("button", name="New key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("shop front")
    dialog.get_by_role("button", name="Make it").click()
    shown = page.get_by_role("dialog").locator("pre")
    expect(shown).to_be_visible()
    secret = shown.text_content() or ""
    assert site.ask("GET", "/v1/whoami", key=secret)[0] == 200
    page.keyboard.press("Escape")
    page.reload(wait_until="domcontentloaded")
    view.ready("Keys")
    expect(view.main()).to_contain_text("shop front")
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke shop front").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("Revoke")).click()
    expect(page.locator("main tr").filter(has_text="shop front")).to_have_count(0)
    assert site.ask("GET", "/v1/whoami", key=secret)[0] == 401
