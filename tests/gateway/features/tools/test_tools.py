"""`GET /v1/tools`: the tools of live workers, and who sees what of them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sluice.common.contracts.access import Scope
from sluice.common.contracts.models import ToolOrigin
from sluice.common.features.tools.listing import ListedTool, digest_of, encode_tools
from sluice.common.observability.heartbeats import Heartbeat, ToolsReading
from sluice.gateway.features.tools import catalog as module
from sluice.gateway.observability import workers
from tests.support.gateway.access import call, key_for
from tests.support.gateway.harness import Gateway, check_problem

pytestmark = pytest.mark.fakeredis_only

TOOLS = "/v1/tools"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
ADD = ListedTool("add", "Adds.", {"type": "object"}, ToolOrigin.BUILT_IN)
READ = ListedTool("files.read", "Reads a file.", SCHEMA, ToolOrigin.MCP, "files")
OTHER_ADD = ListedTool("add", "Adds better.", None, ToolOrigin.CUSTOM)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CACHE_TTL_S", 0.0)


async def offer(gateway: Gateway, consumer: str, *tools: ListedTool, write: bool = True) -> str:
    """A live worker with these tools; returns the key of its list."""
    raw = encode_tools(tools)
    reading = ToolsReading(digest_of(raw), len(tools))
    key = gateway.keys.tools(reading.digest)
    if write:
        await gateway.redis.set(key, raw)
    await gateway.heartbeat(Heartbeat(consumer, seen_ms=int(time.time() * 1000), tools=reading))
    return key


async def listed(gateway: Gateway, key: str | None = None) -> list[dict[str, Any]]:
    answer = await call(gateway, "GET", TOOLS, key)
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json()["tools"]
    return found


async def test_tools_of_all_workers_are_merged(gateway: Gateway) -> None:
    assert await listed(gateway) == []
    await offer(gateway, "w1", ADD, READ)
    await offer(gateway, "w2", ADD)
    await offer(gateway, "w3", OTHER_ADD)
    await gateway.heartbeat(Heartbeat("w4", seen_ms=int(time.time() * 1000)))  # an echo worker
    first, second, third = await listed(gateway)
    assert third == {
        "name": "files.read",
        "description": "Reads a file.",
        "parameters": SCHEMA,
        "origin": "mcp",
        "server": "files",
        "worker_count": 1,
        "workers": ["w1"],
    }
    both = {each["description"]: each for each in (first, second)}
    assert (both["Adds."]["workers"], both["Adds."]["origin"]) == (["w1", "w2"], "built_in")
    assert (both["Adds."]["server"], both["Adds better."]["parameters"]) == (None, None)
    await gateway.redis.delete(gateway.keys.worker("w1"))
    assert [each["worker_count"] for each in await listed(gateway)] == [1, 1]


async def test_workers_with_equal_tools_cost_no_more_than_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Any] = []
    encode = module.codec.dumps_canonical
    monkeypatch.setattr(
        module.codec, "dumps_canonical", lambda value: compared.append(value) or encode(value)
    )
    for consumer in ("w3", "w1", "w2"):
        await offer(gateway, consumer, ADD, READ)
    found = await listed(gateway)
    assert [each["workers"] for each in found] == [["w1", "w2", "w3"]] * 2
    assert len(compared) == 2


async def test_a_list_is_read_once_and_may_be_missing_for_a_moment(gateway: Gateway) -> None:
    key = await offer(gateway, "w1", ADD, write=False)
    assert await listed(gateway) == []
    await gateway.redis.set(key, "no list")
    assert await listed(gateway) == []
    await gateway.redis.set(key, encode_tools([ADD]))
    assert len(await listed(gateway)) == 1
    await gateway.redis.delete(key)
    assert len(await listed(gateway)) == 1


async def test_a_key_sees_the_tools_that_it_may_use(gateway: Gateway) -> None:
    """Names of workers need the scope of `GET /v1/workers`."""
    await offer(gateway, "w1", ADD, READ)
    plain = await key_for(gateway, scopes=[Scope.JOBS_WRITE.value], tenant="acme")
    found = await listed(gateway, plain)
    assert [(each["name"], each["worker_count"], each["workers"]) for each in found] == [
        ("add", 1, None),
        ("files.read", 1, None),
    ]
    monitor = await key_for(gateway, scopes=[Scope.METRICS.value], tools=["add"])
    [only] = await listed(gateway, monitor)
    assert (only["name"], only["workers"]) == ("add", ["w1"])
    none = await key_for(gateway, scopes=[Scope.JOBS_READ.value], tools=[])
    assert await listed(gateway, none) == []


async def test_the_response_is_limited(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LISTS", 2)
    monkeypatch.setattr(module, "MOST_TOOLS", 2)
    for number in range(2):
        await offer(gateway, f"a{number}", ADD)
        await offer(gateway, f"b{number}", READ)
    await offer(gateway, "c", OTHER_ADD)
    assert [each["description"] for each in await listed(gateway)] == ["Adds.", "Reads a file."]
    monkeypatch.setattr(module, "MOST_TOOLS", 1)
    assert len(await listed(gateway)) == 1


async def test_without_redis_the_answer_is_503(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await offer(gateway, "w1", ADD)

    async def away(*_: object) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(gateway.state.client, "mget", away)
    check_problem(await gateway.client.get(TOOLS), 503, "store_unavailable")
