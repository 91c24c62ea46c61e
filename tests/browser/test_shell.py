"""The frame around every page: keys, colours, help, and a page's own headers."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.site import Site
from tests.browser.view import View

POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "font-src 'self'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
}


def test_the_policy_is_as_strict_as_it_can_be(site: Site) -> None:
    with urllib.request.urlopen(f"{site.url}/ui") as answer:
        given = answer.headers["content-security-policy"]
    assert {part.strip() for part in given.split(";") if part.strip()} == POLICY


def test_the_policy_is_in_force(view: View) -> None:
    """The watch over violations sees one, where there is one."""
    page = view.go("/ui")
    view.expect_faults("CSP|Content Security Policy|TrustedHTML|require-trusted-types-for")
    seen: list[str] = []
    page.on("console", lambda message: seen.append(message.text))
    page.evaluate("() => { try { document.body.innerHTML = '<b>x</b>' } catch {} }")
    expect(page.locator("main h1")).to_be_visible()
    assert any(words.startswith("CSP: require-trusted-types-for") for words in seen), seen


def test_help_and_ways_by_keyboard(view: View) -> None:
    page = view.go("/ui")
    page.keyboard.press("?")
    help = page.get_by_role("dialog")
    expect(help).to_contain_text("dead letters")
    page.keyboard.press("Escape")
    expect(help).to_have_count(0)
    for key, path, title in (
        ("j", "/ui/jobs", "Jobs"),
        ("p", "/ui/playground", "Playground"),
        ("d", "/ui/dead", "Dead letters"),
        ("w", "/ui/workers", "Workers"),
        ("o", "/ui", re.compile(".")),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(view.base + path)
        view.ready(title)
    page.go_back()
    view.ready("Workers")


def test_keys_are_letters_where_one_writes(view: View) -> None:
    page = view.go("/ui/jobs", "Jobs")
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("gp?")
    expect(page.get_by_label("Search")).to_have_value("gp?")
    expect(page).to_have_url(re.compile("/ui/jobs"))
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_colours_follow_the_system_until_somebody_chooses(open_view: Callable[..., View]) -> None:
    view = open_view(scheme="dark")
    page = view.go("/ui")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="Colours as the system has them").click()  # light
    page.get_by_role("button", name="Light colours").click()  # dark
    page.reload(wait_until="domcontentloaded")
    view.ready()
    assert page.evaluate(background) == dark  # it is remembered


def test_what_is_nowhere_says_so(view: View) -> None:
    page = view.go("/ui/no/such/page", "Sorry")
    page.get_by_role("link", name="Jobs", exact=True).click()
    view.ready("Jobs")
