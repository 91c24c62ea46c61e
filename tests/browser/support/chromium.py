"""The Chromium of the system, driven by Playwright; none is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

#: Environment variable with the path of the executable; without it, these names are searched.
VARIABLE = "CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: Generous: the tests also run on slow, busy machines.
TIMEOUT_S = 30.0
#: No background traffic: all requests come from the pages.
ARGUMENTS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--font-render-hinting=none",
)


def find_executable() -> str | None:
    """Path of the browser; None if there is none."""
    configured = os.environ.get(VARIABLE)
    if configured:
        return configured
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launch(executable: str) -> Iterator[Browser]:
    # Chromium refuses to run as root with its sandbox.
    sandbox = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, args=[*ARGUMENTS, *sandbox], timeout=TIMEOUT_S * 1000
        )
        try:
            yield browser
        finally:
            browser.close()
