"""Page object of the dashboard: navigation, waiting, and a record of all errors."""

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

from tests.browser.support.chromium import TIMEOUT_S

Scheme = Literal["light", "dark"]
WIDE, PHONE = (1280, 800), (360, 740)
#: Logs violations of the content security policy, so that they are recorded as errors.
_LOG_CSP_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""

#: Paths of event streams, whose responses do not end.
_STREAMS = re.compile(r"/v1/stream|/events")
#: Resolves after two frames, when pending changes are painted.
_AFTER_PAINT = (
    "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
)

expect.set_options(timeout=TIMEOUT_S * 1000)


class DashboardPage:
    """A browser tab with its own profile. Use `open`, then the Playwright page `page`."""

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
        self.context.set_default_timeout(TIMEOUT_S * 1000)
        self.page: Page = self.context.new_page()
        self.page.add_init_script(_LOG_CSP_VIOLATIONS)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        self._pending: set[Request] = set()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self._record_error(f"error: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", self._on_request)
        self.page.on("requestfinished", self._on_response)
        self.page.on("requestfailed", self._on_response)

    # -- errors ----------------------------------------------------------------------------

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._record_error(
                f"{message.type}: {message.text} ({message.location.get('url', '')})"
            )

    def _on_dialog(self, dialog: Dialog) -> None:
        self._record_error(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not _STREAMS.search(request.url):
            self._pending.add(request)
        if not request.url.startswith((self.base, "data:", "blob:")):
            self._record_error(f"request to another host: {request.url}")

    def _on_response(self, request: Request) -> None:
        self._pending.discard(request)

    def _record_error(self, text: str) -> None:
        if not any(pattern.search(text) for pattern in self._allowed):
            self.errors.append(text)

    def allow_errors(self, pattern: str) -> None:
        """Do not record matching errors from now on."""
        self._allowed.append(re.compile(pattern))

    def assert_no_errors(self) -> None:
        """No console error, exception, dialog, policy violation or request to another host."""
        assert not self.errors, "\n".join(self.errors)

    # -- navigation and waiting ------------------------------------------------------------

    def open(self, path: str, title: str | re.Pattern[str] | None = None) -> Page:
        """Open a path and wait until the page is rendered."""
        self.page.goto(self.base + path, wait_until="domcontentloaded")
        self.wait_for_page(title)
        return self.page

    def wait_for_page(self, title: str | re.Pattern[str] | None = None) -> None:
        """Wait until a page with this heading is rendered; any page without `title`."""
        heading = self.page.locator("main h1").first
        expect(heading).to_be_visible()
        if title is not None:
            expect(heading).to_contain_text(title)

    def wait_until_idle(self) -> None:
        """Wait until no request is pending and all responses are painted."""
        idle_frames = 0
        while idle_frames < 3:
            self.page.evaluate(_AFTER_PAINT)
            idle_frames = 0 if self._pending else idle_frames + 1

    def main(self) -> Locator:
        """The content of the page, without the shell."""
        return self.page.locator("main")

    def wait_until_live(self) -> None:
        """Wait until the event stream of the page is open."""
        expect(self.page.locator("button.live")).to_have_attribute("data-state", "open")

    def close(self) -> None:
        self.context.close()


@contextmanager
def open_dashboard_page(browser: Browser, base: str, **options: Any) -> Iterator[DashboardPage]:
    """A page that must have no errors in the end, unless the test has failed already."""
    dashboard = DashboardPage(browser, base, **options)
    try:
        yield dashboard
        dashboard.assert_no_errors()
    finally:
        dashboard.close()


def wait_for(page: Page, condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Poll a condition. The content security policy blocks Playwright's wait_for_function."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if value := condition():
                return value
        except Error:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"condition not met within {timeout_s} s"
        page.wait_for_timeout(25)
