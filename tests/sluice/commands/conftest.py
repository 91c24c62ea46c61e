"""Terminals for commands, which are always closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.client.site import Site
from tests.support.processes.commands import Terminal


@pytest.fixture
def terminal(site: Site) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*words: str, **settings: str) -> Terminal:
        opened.append(Terminal(*words, SLUICE_URL=site.url, **settings))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
