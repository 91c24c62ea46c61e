"""Lines break, pages are loaded again, gateways die: nothing is missed, and nothing comes twice."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.browser.view import View

WORDS = "one two three four five six"
#: What a browser says while there is nobody to answer.
NOBODY = r"net::ERR_"


class Gate:
    """Lets a job say its words one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def open(self, words: int) -> None:
        with self.path.open("a") as file:
            file.write("\n" * words)


def test_a_page_that_is_loaded_again_has_it_all(view: View, site: Site, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    job_id = site.submit("plan", {"text": WORDS, "gate": str(gate.path)})
    page = view.go(f"/ui/jobs/{job_id}")
    said = page.locator(".output pre.flow").last
    gate.open(2)
    expect(said).to_have_text("one two three")
    page.reload(wait_until="domcontentloaded")
    expect(said).to_have_text("one two three")
    gate.open(4)
    expect(said).to_have_text(WORDS)
    expect(page.locator("main .badge").first).to_have_text("done")


def test_a_gateway_that_dies_and_comes_back_is_missed_only_meanwhile(
    open_view: object, site: Site, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    job_id = site.submit("plan", {"text": WORDS, "gate": str(gate.path)})
    one: View = open_view()  # type: ignore[operator]
    overview: View = open_view()  # type: ignore[operator]
    one.go(f"/ui/jobs/{job_id}")
    overview.go("/ui")
    overview.is_live()
    said = one.page.locator(".output pre.flow").last
    gate.open(1)
    expect(said).to_have_text("one two")
    row = overview.page.locator(f"main tr:has(a[href='/ui/jobs/{job_id}'])")
    expect(row).to_contain_text("running")

    for view in (one, overview):
        view.expect_faults(NOBODY)
    site.kill_gateway()
    live = overview.page.locator("button.live")
    expect(live).to_contain_text("Reconnecting")
    gate.open(2)  # the worker goes on, and nobody hears it
    site.start_gateway()

    expect(said).to_have_text("one two three four")
    expect(live).to_contain_text("Live")
    gate.open(3)
    expect(said).to_have_text(WORDS)
    expect(one.page.locator("main .badge").first).to_have_text("done")
    expect(row).to_contain_text("done")
    after = site.submit("chat", {"text": "after"})
    expect(overview.page.locator(f"main a[href='/ui/jobs/{after}']")).to_have_count(1)


def test_what_ended_while_nobody_listened_is_seen(view: View, site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    job_id = site.submit("code", {"wait": str(gate)})
    page = view.go("/ui")
    view.is_live()
    row = page.locator(f"main tr:has(a[href='/ui/jobs/{job_id}'])")
    expect(row).to_contain_text("running")
    view.expect_faults(NOBODY)
    site.kill_gateway()
    gate.touch()
    site.start_gateway()
    expect(row).to_contain_text("done")
