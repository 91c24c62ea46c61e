"""One site per BullMQ release; its tests run in one test process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.node import RELEASES, require_node
from tests.interop.site import Site
from tests.support.servers import BUNDLED, SYSTEM, RealServer, require_binary


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests by release, so that each release has one site."""
    for item in items:
        release = getattr(item, "callspec", None) and item.callspec.params.get("site")  # type: ignore[attr-defined]
        if release in RELEASES:
            item.add_marker(pytest.mark.xdist_group(str(release)))


OLDER = pytest.mark.slow("an older release of BullMQ")


@pytest.fixture(
    scope="session",
    params=[RELEASES[0], *(pytest.param(each, marks=OLDER) for each in RELEASES[1:])],
)
def site(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Shared; each test takes its own queue. The newest release is on the embedded Redis, so that
    its smoke tests need no installation; failures are tested on the system's."""
    require_node()
    server = RealServer(require_binary(BUNDLED if request.param == RELEASES[0] else SYSTEM))
    site = Site(request.param, tmp_path_factory.mktemp(request.param), server)
    yield site
    site.close()


@pytest.fixture
def queue(site: Site) -> str:
    return site.queue()


@pytest.fixture
def node_queue(site: Site) -> str:
    """A queue served by Node's worker."""
    name = site.queue_without_worker()
    site.node.ask("work", queue=name, kind="by-name", concurrency=5)
    return name
