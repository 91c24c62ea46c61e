"""Chromium, driven by Playwright: the one that the system has, never a downloaded one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

#: Where it is looked for; the variable goes before.
VARIABLE = "CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: On a busy machine everything takes its time.
PATIENCE_S = 30.0
#: It asks nobody anything: what it says on the network is what the pages say.
ARGUMENTS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--font-render-hinting=none",
)


def found() -> str | None:
    """The browser's program, if this machine has one."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def opened(program: str) -> Iterator[Browser]:
    """A browser without a window."""
    # Chromium refuses to be root in a sandbox of its own.
    sandbox = () if os.geteuid() else ("--no-sandbox",)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=[*ARGUMENTS, *sandbox], timeout=PATIENCE_S * 1000
        )
        try:
            yield browser
        finally:
            browser.close()
