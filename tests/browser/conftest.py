"""A browser for the run, a site for each file, a view for each test that must stay clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.backends import missing
from tests.browser import chromium
from tests.browser.site import Site, running
from tests.browser.view import View, viewing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory drives a browser."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = chromium.found()
    if program is None:
        missing("there is no Chromium: apt-get install chromium")
        raise AssertionError  # that was the end
    with chromium.opened(program) as browser:
        yield browser


@pytest.fixture(scope="module")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A gateway and a worker of this file's own; without a browser there is no need for them."""
    with running(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def open_view(browser: Browser, site: Site) -> Iterator[Callable[..., View]]:
    """Opens views on the site; all of them must be clean in the end."""
    with ExitStack() as stack:
        yield lambda base=None, **wishes: stack.enter_context(
            viewing(browser, base or site.url, **wishes)
        )


@pytest.fixture
def view(open_view: Callable[..., View]) -> View:
    """One view, light and wide."""
    return open_view()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """A test that failed shows what its views complained of and what the gateway said."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, View):
                report.sections.append((f"faults of {name}", "\n".join(value.faults)))
            elif isinstance(value, Site):
                report.sections.append((f"gateway of {name}", value.gateway.log[-4000:]))
    return report
