"""Every page: no injection, no violation of policy or accessibility, small files; the shell."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.screenshots import MAX_BYTES, SCHEMES, pages
from tests.browser.support import axe
from tests.browser.support.dashboard_page import PHONE, DashboardPage
from tests.browser.support.live_server import LiveServer
from tests.browser.support.sample_data import HOSTILE, SampleData, create_sample_data
from tests.support.processes.worker import ROOT

PAGES = tuple(SampleData("", "", "", "", "").paths)
BUDGET_BYTES = 150 * 1024
#: Expands all collapsed parts of a page, so that they are checked too.
_EXPAND_DETAILS = "for (const node of document.querySelectorAll('main details')) node.open = true"
_INJECTED = "#injected, main script, [onload], [onerror], a[href^='javascript:'], img[src='x']"
_OVERFLOW_PX = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def sample_data(server: LiveServer) -> SampleData:
    """All names and payloads are hostile."""
    return create_sample_data(server, HOSTILE, name="<img src=x onerror=alert(7)>.jpg")


@pytest.mark.parametrize("name", PAGES)
def test_accessible_and_free_of_injection(
    name: str, sample_data: SampleData, server: LiveServer, dashboard: DashboardPage
) -> None:
    page = dashboard.open(sample_data.paths[name])
    dashboard.wait_until_idle()
    loaded = {urlsplit(url).path for url in dashboard.requests}
    page.evaluate(_EXPAND_DETAILS)
    dashboard.wait_until_idle()
    assert page.locator(_INJECTED).count() == 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        dashboard.wait_until_idle()
        assert axe.violations(page) == [], scheme
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    dashboard.wait_until_idle()
    assert page.evaluate(_OVERFLOW_PX) <= 0, _overflowing_elements(dashboard)
    assert axe.violations(page) == [], "on a phone"
    # The size of all loaded files; they are neither minified nor compressed.
    files = [path for path in loaded if path.startswith("/ui/static/")]
    sizes = {path: len(server.gateway.http.get(path).content) for path in ("/ui", *files)}
    assert len(sizes) > 10
    assert sum(sizes.values()) <= BUDGET_BYTES, sorted(sizes.items(), key=lambda each: -each[1])


#: Bytes of all responses that the browser has received, with their headers, as transferred.
_TRANSFERRED = """() => performance.getEntries()
  .filter((entry) => ["navigation", "resource"].includes(entry.entryType))
  .map((entry) => [entry.name, entry.transferSize])"""


def test_first_visit_transfers_little(dashboard: DashboardPage) -> None:
    """Files and responses of the API, with an empty cache."""
    page = dashboard.open("/ui")
    dashboard.wait_until_idle()
    transferred = page.evaluate(_TRANSFERRED)
    assert len(transferred) > 15
    assert any("/v1/" in url for url, _ in transferred)
    assert 20_000 < sum(size for _, size in transferred) < BUDGET_BYTES, transferred


#: Draws a chart with the longest labels of both axes; returns how many pixels of its canvas are
#: drawn in the outermost columns: a label that is cut touches them.
_CHART_LABELS = """async () => {
  const { chart } = await import("/ui/static/components/charts.js");
  const { duration } = await import("/ui/static/lib/format.js");
  const series = [{ name: "", column: "ms", colour: "--bad" }];
  const item = chart({ title: "", series, format: duration });
  document.querySelector("main").replaceChildren(item.node);
  const hour = 3_600_000, end = 490_000 * hour, rows = [...Array(600).keys()];
  const columns = { ts: rows.map((i) => end - (599 - i) * 1000), ms: rows.map((i) => i * 16_000) };
  item.set(columns, end - 600_000, end);
  await new Promise((resolve) => setTimeout(resolve, 100));
  const { width, height } = item.node.querySelector("canvas");
  const context = item.node.querySelector("canvas").getContext("2d");
  const bytes = context.getImageData(0, 0, width, height).data;
  const drawn = (x) => Array.from({ length: height }, (_, y) => bytes[(y * width + x) * 4 + 3]);
  return [0, width - 1].map((x) => drawn(x).filter(Boolean).length);
}"""


def test_labels_of_charts_are_not_cut(dashboard: DashboardPage) -> None:
    page = dashboard.open("/ui/keys")
    dashboard.wait_until_idle()
    assert page.evaluate(_CHART_LABELS) == [0, 0]


def _overflowing_elements(dashboard: DashboardPage) -> str:
    """HTML of the elements that are wider than the screen."""
    found = dashboard.page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
          .slice(0, 12).map((node) => node.outerHTML.slice(0, 120))"""
    )
    return "\n".join(found)


# -- the shell: content security policy, shortcuts, theme, unknown pages -----------------------


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


# -- the screenshots of the docs; `make screenshots` takes them --------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", pages(SimpleNamespace(answered="", workflow="")))
def test_screenshot_exists_and_is_small(name: str, scheme: str) -> None:
    picture = ROOT / "docs" / "screenshots" / f"{name}-{scheme}.png"
    assert 0 < picture.stat().st_size <= MAX_BYTES
