"""The list of a worker's tools in Redis, and its digest in the heartbeat."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sluice.common.aio import cancel
from sluice.common.contracts.models import ToolOrigin
from sluice.common.features.tools.listing import TTL_S, parse_tools
from sluice.worker.features.tools import catalog as module
from sluice.worker.features.tools.catalog import ToolCatalog
from sluice.worker.features.tools.tool import make_tool
from tests.support.waiting import eventually
from tests.support.worker.harness import MakeWorker, WorkerHarness
from tests.support.worker.tools import ANYTHING, CountedTools

pytestmark = pytest.mark.fakeredis_only


@pytest.fixture
def tools() -> CountedTools:
    return CountedTools()


@pytest.fixture
def worker(make_worker: MakeWorker, tools: CountedTools) -> WorkerHarness:
    return make_worker(registry=tools.registry)


async def listed(worker: WorkerHarness, digest: str) -> dict[str, ToolOrigin]:
    """The names and origins in the list with this digest."""
    found = parse_tools(await worker.client.get(worker.keys.tools(digest)))
    return {tool.name: tool.origin for tool in found or ()}


async def test_the_list_is_published_and_its_digest_is_in_the_heartbeat(
    worker: WorkerHarness, tools: CountedTools
) -> None:
    tools.add("hammer")
    tools.add("now")  # replaces the built-in tool
    tools.toolbox.configure("now,calculator,hammer,files.read", 10.0, 1000)
    catalog = ToolCatalog(tools.toolbox)
    services = worker.services
    await catalog.start(services)
    reading = services.heartbeat_fields["tools"]()
    assert reading.number == 3
    await catalog.publish()
    assert await listed(worker, reading.digest) == {
        "calculator": ToolOrigin.BUILT_IN,
        "hammer": ToolOrigin.CUSTOM,
        "now": ToolOrigin.CUSTOM,
    }
    assert 0 < await worker.client.ttl(worker.keys.tools(reading.digest)) <= TTL_S
    assert services.heartbeat_fields["tools"]() is reading


async def test_changes_are_published_and_lists_kept_alive(
    worker: WorkerHarness, tools: CountedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = SimpleNamespace(tools={}, unavailable_reason="starting")
    tools.toolbox.add_source("files", remote)
    catalog = ToolCatalog(tools.toolbox)
    await catalog.start(worker.services)
    running = asyncio.ensure_future(catalog.run())
    before = catalog.reading().digest
    await eventually(lambda: worker.client.exists(worker.keys.tools(before)))
    read = make_tool(lambda call, args: 1, name="files.read", description="R", parameters=ANYTHING)
    remote.tools = {"files.read": read}
    after = catalog.reading().digest  # as each heartbeat does
    assert after != before
    await eventually(lambda: worker.client.exists(worker.keys.tools(after)))
    assert (await listed(worker, after))["files.read"] is ToolOrigin.MCP
    await cancel(running)
    await worker.client.delete(worker.keys.tools(after))  # Redis has lost its data
    monkeypatch.setattr(module, "REFRESH_S", 0.01)
    running = asyncio.ensure_future(catalog.run())
    await eventually(lambda: worker.client.exists(worker.keys.tools(after)))
    await cancel(running)


async def test_errors_of_redis_are_tolerated(
    worker: WorkerHarness, tools: CountedTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.01)
    catalog = ToolCatalog(tools.toolbox)
    await catalog.start(worker.services)
    publish, failures = catalog.publish, [RedisConnectionError("away")] * 2

    async def unreliable() -> None:
        if failures:
            raise failures.pop()
        await publish()

    monkeypatch.setattr(catalog, "publish", unreliable)
    running = asyncio.ensure_future(catalog.run())
    digest = catalog.reading().digest
    await eventually(lambda: worker.client.exists(worker.keys.tools(digest)))
    await cancel(running)
