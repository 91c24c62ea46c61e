"""The shell around every page: content security policy, shortcuts, theme, unknown pages."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.support.dashboard_page import DashboardPage
from tests.browser.support.live_server import LiveServer

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


def test_content_security_policy_header(server: LiveServer) -> None:
    with urllib.request.urlopen(f"{server.url}/ui") as answer:
        header = answer.headers["content-security-policy"]
    assert {part.strip() for part in header.split(";") if part.strip()} == POLICY


def test_content_security_policy_is_enforced(dashboard: DashboardPage) -> None:
    """A violation is blocked and recorded as an error."""
    page = dashboard.open("/ui")
    dashboard.allow_errors("CSP|Content Security Policy|TrustedHTML|require-trusted-types-for")
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.evaluate("() => { try { document.body.innerHTML = '<b>x</b>' } catch {} }")
    expect(page.locator("main h1")).to_be_visible()
    assert any(text.startswith("CSP: require-trusted-types-for") for text in messages), messages


def test_keyboard_help_and_navigation(dashboard: DashboardPage) -> None:
    page = dashboard.open("/ui")
    page.keyboard.press("?")
    help = page.get_by_role("dialog")
    expect(help).to_contain_text("dead letters")
    page.keyboard.press("Escape")
    expect(help).to_have_count(0)
    for key, path, title in (
        ("j", "/ui/jobs", "Jobs"),
        ("p", "/ui/playground?task=chat", "Playground"),
        ("d", "/ui/dead", "Dead letters"),
        ("w", "/ui/workers", "Workers"),
        ("o", "/ui", re.compile(".")),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page).to_have_url(dashboard.base + path)
        dashboard.wait_for_page(title)
    page.go_back()
    dashboard.wait_for_page("Workers")


def test_shortcuts_are_ignored_while_typing(dashboard: DashboardPage) -> None:
    page = dashboard.open("/ui/jobs", "Jobs")
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("gp?")
    expect(page.get_by_label("Search")).to_have_value("gp?")
    expect(page).to_have_url(re.compile("/ui/jobs"))
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_theme_follows_the_system_until_chosen(
    open_dashboard: Callable[..., DashboardPage],
) -> None:
    dashboard = open_dashboard(scheme="dark")
    page = dashboard.open("/ui")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="System colours").click()  # light
    page.get_by_role("button", name="Light colours").click()  # dark
    page.reload(wait_until="domcontentloaded")
    dashboard.wait_for_page()
    assert page.evaluate(background) == dark  # the choice is stored


def test_unknown_page_shows_an_error(dashboard: DashboardPage) -> None:
    page = dashboard.open("/ui/no/such/page", "Error")
    page.get_by_role("link", name="Jobs", exact=True).click()
    dashboard.wait_for_page("Jobs")
