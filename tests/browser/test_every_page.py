"""What holds on every page: nothing hostile runs, nothing is refused, everybody can use it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.browser import axe
from tests.browser.furniture import HOSTILE, Furnished, furnish
from tests.browser.site import Site
from tests.browser.view import PHONE, View

NAMES = tuple(Furnished("", "", "", "", "").paths)
BUDGET_BYTES = 150 * 1024
#: Opens what a page keeps folded, so that it is looked at too.
_UNFOLD = "for (const node of document.querySelectorAll('main details')) node.open = true"
_INJECTED = "#injected, main script, [onload], [onerror], a[href^='javascript:'], img[src='x']"
_WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def furnished(site: Site) -> Furnished:
    """Everything on it was named and filled by an enemy."""
    return furnish(site, HOSTILE, name="<img src=x onerror=alert(7)>.jpg")


@pytest.mark.parametrize("name", NAMES)
def test_is_for_everybody_and_lets_nothing_run(
    name: str, furnished: Furnished, site: Site, view: View
) -> None:
    page = view.go(furnished.paths[name])
    view.settled()
    loaded = {urlsplit(url).path for url in view.requests}
    page.evaluate(_UNFOLD)
    view.settled()
    assert page.locator(_INJECTED).count() == 0
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        view.settled()
        assert axe.faults(page) == [], scheme
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    view.settled()
    assert page.evaluate(_WIDER) <= 0, _widest(view)
    assert axe.faults(page) == [], "on a phone"
    # All files that it loads, as they are on the disk: nothing is minified or compressed.
    files = [path for path in loaded if path.startswith("/ui/static/")]
    weights = {path: len(site.raw(path)) for path in ("/ui", *files)}
    assert len(weights) > 10
    assert sum(weights.values()) <= BUDGET_BYTES, sorted(weights.items(), key=lambda each: -each[1])


def _widest(view: View) -> str:
    """Who sticks out."""
    found = view.page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
          .slice(0, 12).map((node) => node.outerHTML.slice(0, 120))"""
    )
    return "\n".join(found)
