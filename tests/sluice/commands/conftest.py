"""Fixtures: a gateway and a worker per test process, and terminals that are always closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.processes.commands import Stack, Terminal
from tests.support.servers import BUNDLED, RealServer, require_binary


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RealServer]:
    server = RealServer(require_binary(BUNDLED))
    yield server
    server.close()


@pytest.fixture(scope="session")
def stack(redis_server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(redis_server, tmp_path_factory.mktemp("stack"))
    yield stack
    stack.close()


@pytest.fixture
def terminal(stack: Stack) -> Iterator[Callable[..., Terminal]]:
    """Start commands on pseudo-terminals."""
    opened: list[Terminal] = []

    def start(*words: str, **settings: str) -> Terminal:
        opened.append(Terminal(*words, SLUICE_URL=stack.url, **settings))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
