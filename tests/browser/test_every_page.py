"""On every page: no injection, no policy violation, no accessibility violation, small files."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.browser.support import axe
from tests.browser.support.dashboard_page import PHONE, DashboardPage
from tests.browser.support.live_server import LiveServer
from tests.browser.support.sample_data import HOSTILE, SampleData, create_sample_data

NAMES = tuple(SampleData("", "", "", "", "").paths)
BUDGET_BYTES = 150 * 1024
#: Expands all collapsed parts of a page, so that they are checked too.
_EXPAND_DETAILS = "for (const node of document.querySelectorAll('main details')) node.open = true"
_INJECTED = "#injected, main script, [onload], [onerror], a[href^='javascript:'], img[src='x']"
_OVERFLOW_PX = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def sample_data(server: LiveServer) -> SampleData:
    """All names and payloads are hostile."""
    return create_sample_data(server, HOSTILE, name="<img src=x onerror=alert(7)>.jpg")


@pytest.mark.parametrize("name", NAMES)
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


def _overflowing_elements(dashboard: DashboardPage) -> str:
    """HTML of the elements that are wider than the screen."""
    found = dashboard.page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
          .slice(0, 12).map((node) => node.outerHTML.slice(0, 120))"""
    )
    return "\n".join(found)
