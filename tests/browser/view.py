"""One tab, and everything that went wrong in it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Locator,
    Page,
    Request,
    expect,
)

from tests.browser.chromium import PATIENCE_S

Scheme = Literal["light", "dark"]
WIDE, PHONE = (1280, 800), (360, 740)
#: Says on the console what the policy has refused, so that it is among the faults.
_TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""

#: Answers that do not end.
_STREAMS = re.compile(r"/v1/stream|/events")
#: Two frames later all that was to be painted is painted.
_PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

expect.set_options(timeout=PATIENCE_S * 1000)


class View:
    """A tab of its own profile, on one gateway. Use `go`, then `page`."""

    def __init__(
        self,
        browser: Browser,
        base: str,
        scheme: Scheme = "light",
        size: tuple[int, int] = WIDE,
        context: BrowserContext | None = None,
    ) -> None:
        self.base = base
        self.context = context or browser.new_context(
            color_scheme=scheme,
            viewport={"width": size[0], "height": size[1]},
            locale="en-GB",
            timezone_id="UTC",
            reduced_motion="reduce",
        )
        self.context.set_default_timeout(PATIENCE_S * 1000)
        self.page: Page = self.context.new_page()
        self.page.add_init_script(_TELL_VIOLATIONS)
        self.faults: list[str] = []
        self.requests: list[str] = []
        self._expected: list[re.Pattern[str]] = []
        self._under_way: set[Request] = set()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self._fault(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._asked)
        self.page.on("requestfinished", self._answered)
        self.page.on("requestfailed", self._answered)

    # -- what went wrong -------------------------------------------------------------------

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._fault(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _dialog(self, dialog: Dialog) -> None:
        self._fault(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)
        if not _STREAMS.search(request.url):
            self._under_way.add(request)
        if not request.url.startswith((self.base, "data:", "blob:")):
            self._fault(f"somebody else was asked: {request.url}")

    def _answered(self, request: Request) -> None:
        self._under_way.discard(request)

    def _fault(self, words: str) -> None:
        if not any(pattern.search(words) for pattern in self._expected):
            self.faults.append(words)

    def expect_faults(self, pattern: str) -> None:
        """From now on, these are as they should be."""
        self._expected.append(re.compile(pattern))

    def is_clean(self) -> None:
        """Nothing was refused, nothing threw, nobody was asked but the gateway."""
        assert not self.faults, "\n".join(self.faults)

    # -- around ----------------------------------------------------------------------------

    def go(self, path: str, title: str | re.Pattern[str] | None = None) -> Page:
        """Open a path, and wait until its page is there."""
        self.page.goto(self.base + path, wait_until="domcontentloaded")
        self.ready(title)
        return self.page

    def ready(self, title: str | re.Pattern[str] | None = None) -> None:
        """Wait until a page is there; it has a headline, or is one for signing in."""
        head = self.page.locator("main h1").first
        expect(head).to_be_visible()
        if title is not None:
            expect(head).to_contain_text(title)

    def settled(self) -> None:
        """Wait until nothing is asked for any more, and the answers are on the screen."""
        quiet = 0
        while quiet < 3:
            self.page.evaluate(_PAINTED)
            quiet = 0 if self._under_way else quiet + 1

    def main(self) -> Locator:
        """What is between the frame."""
        return self.page.locator("main")

    def is_live(self) -> None:
        """The page's stream is open."""
        expect(self.page.locator("button.live")).to_have_attribute("data-state", "open")

    def close(self) -> None:
        self.context.close()


@contextmanager
def viewing(browser: Browser, base: str, **wishes: Any) -> Iterator[View]:
    """A view that must have been clean in the end, unless the test has failed already."""
    view = View(browser, base, **wishes)
    try:
        yield view
        view.is_clean()
    finally:
        view.close()


def until(page: Page, condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Wait for a condition while the page goes on; a page's policy forbids Playwright's own way."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if value := condition():
                return value
        except Error:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"it did not hold within {timeout_s} s"
        page.wait_for_timeout(25)
