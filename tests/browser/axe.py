"""axe: what keeps people with other eyes, hands or tools from using a page."""

from __future__ import annotations

from functools import cache
from typing import Any

from playwright.sync_api import Page

from tests.backends import missing
from tests.interop import install

GRAVE = ("serious", "critical")


@cache
def _source() -> str:
    try:
        modules = install.ensure()
    except install.NotInstalled as error:
        missing(str(error))
        raise AssertionError from error  # that was the end
    return (modules / "axe-core" / "axe.min.js").read_text()


def faults(page: Page) -> list[str]:
    """The grave ones, in words; whoever mends them wants to know where."""
    page.evaluate(_source())
    found: list[dict[str, Any]] = page.evaluate(
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
    )
    return [
        f"{fault['impact']} {fault['id']}: {node['html'][:200]} – {_why(node)}"
        for fault in found
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]


def _why(node: dict[str, Any]) -> str:
    return "; ".join(check["message"] for kind in ("any", "all", "none") for check in node[kind])
