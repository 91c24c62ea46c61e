"""Accessibility checks with axe-core."""

from __future__ import annotations

from functools import cache
from typing import Any

from playwright.sync_api import Page

from tests.interop import install
from tests.support.servers import missing

BLOCKING_IMPACTS = ("serious", "critical")


@cache
def _source() -> str:
    try:
        modules = install.ensure()
    except install.NotInstalled as error:
        missing(str(error))
        raise AssertionError from error  # not reached: missing() raises
    return (modules / "axe-core" / "axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """Serious and critical violations, each with the HTML of its element."""
    page.evaluate(_source())
    found: list[dict[str, Any]] = page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
    )
    return [
        f"{violation['impact']} {violation['id']}: {node['html'][:200]} – {_reason(node)}"
        for violation in found
        if violation["impact"] in BLOCKING_IMPACTS
        for node in violation["nodes"]
    ]


def _reason(node: dict[str, Any]) -> str:
    return "; ".join(check["message"] for kind in ("any", "all", "none") for check in node[kind])
