"""Fixtures: a browser for the run, a server per test file, dashboard pages per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.support import chromium
from tests.browser.support.dashboard_page import DashboardPage, open_dashboard_page
from tests.browser.support.live_server import LiveServer, run_server
from tests.support.servers import missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = chromium.find_executable()
    if executable is None:
        missing("there is no Chromium: apt-get install chromium")
        raise AssertionError  # not reached: missing() raises
    with chromium.launch(executable) as browser:
        yield browser


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A Redis, gateway and worker per test file; skipped if there is no browser."""
    with run_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def open_dashboard(browser: Browser, server: LiveServer) -> Iterator[Callable[..., DashboardPage]]:
    """Opens pages of the dashboard; the test fails if one of them logs an error."""
    with ExitStack() as stack:
        yield lambda base=None, **options: stack.enter_context(
            open_dashboard_page(browser, base or server.url, **options)
        )


@pytest.fixture
def dashboard(open_dashboard: Callable[..., DashboardPage]) -> DashboardPage:
    """One page of the dashboard, with the light theme on a wide screen."""
    return open_dashboard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Add the errors of the pages and the log of the gateway to the report of a failed test."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, DashboardPage):
                report.sections.append((f"errors of {name}", "\n".join(value.errors)))
            elif isinstance(value, LiveServer):
                report.sections.append((f"gateway of {name}", value.gateway.log[-4000:]))
    return report
