"""The screenshots of the docs exist and are small; `make screenshots` takes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.browser.screenshots import MAX_BYTES, SCHEMES, pages
from tests.support.processes.worker import ROOT

NAMES = pages(SimpleNamespace(answered="", workflow=""))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_screenshot_exists_and_is_small(name: str, scheme: str) -> None:
    picture = ROOT / "docs" / "screenshots" / f"{name}-{scheme}.png"
    assert 0 < picture.stat().st_size <= MAX_BYTES
