"""What fakeredis does not have: memory limits, ACLs, frozen connections, background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sluice.common.contracts.jobs import JobKeys
from sluice.common.contracts.stats import ONE_SECOND
from sluice.common.jobs.audit.auditor import AuditNotPermitted, Auditor
from sluice.common.redis.connection import async_client
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.lifespan import Connections, open_state
from sluice.gateway.observability import workers
from sluice.gateway.observability.history.rings import WriteOutcome
from sluice.gateway.observability.metrics import routes as metrics_route
from sluice.gateway.observability.status import routes as status_route
from tests.gateway.admin.test_audit import actions
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.gateway.observability.status.test_status import read as read_status
from tests.support.gateway.access import call, id_of, key_for, post
from tests.support.gateway.dead_letters import dead
from tests.support.gateway.harness import Gateway, Make, check_problem, make_gateway, short_retries
from tests.support.gateway.history import LEASE, START, History, sample
from tests.support.servers import Backend
from tests.support.store.jobs import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.real_redis


async def test_a_running_gateway_promotes_due_jobs(backend: Backend) -> None:
    assert backend.url is not None
    settings = GatewaySettings()
    connections = Connections(settings, backend.url)
    async with open_state(settings, connections) as state:
        redis = backend.client()
        hash_fields: Any = {"job_id": "j", "task": "chat", "payload": "{}", "status": "queued"}
        await redis.hset(state.store.keys.job("j"), mapping=hash_fields)
        await redis.zadd(state.store.keys.scheduled, {"j": 1})

        async def promoted() -> int:
            return int(await redis.xlen(state.store.keys.queue))

        assert await eventually(promoted) == 1
    await connections.close()


@pytest.mark.parametrize("lacking", ["-scan", "-xrange"])
async def test_an_audit_with_missing_permissions_is_refused(backend: Backend, lacking: str) -> None:
    """A partial audit would report jobs as lost that are not."""
    admin = backend.client()
    await admin.execute_command("ACL", "SETUSER", "half", "on", ">x", "~*", "&*", "+@all", lacking)
    assert backend.url is not None
    limited = async_client(backend.url.replace("unix://", "unix://half:x@"), connections=1)
    try:
        with pytest.raises(AuditNotPermitted):
            await Auditor(limited, JobKeys(), "workers").run()
    finally:
        await limited.aclose()
        await admin.execute_command("ACL", "DELUSER", "half")


@asynccontextmanager
async def without_memory(redis: Any) -> AsyncIterator[None]:
    await redis.config_set("maxmemory", "1")
    try:
        yield
    finally:
        await redis.config_set("maxmemory", "0")


async def test_actions_that_free_memory_work_when_redis_is_full(strict: Gateway) -> None:
    """Otherwise a key that fills Redis could not be revoked, nor its jobs be removed."""
    admin = await key_for(strict, "root", scopes=("admin",))
    flooding_key = await key_for(strict, tenant="shop")
    job_id = (await post(strict, flooding_key)).json()["job_id"]
    dead_letter = await dead(strict)
    async with without_memory(strict.redis):
        with short_retries(*strict.batchers):
            check_problem(await post(strict, flooding_key), 503, "store_unavailable")
        for path in (f"keys/{id_of(flooding_key)}", f"dlq/{dead_letter}", f"jobs/{job_id}"):
            answer = await call(strict, "DELETE", f"/v1/{path}", admin)
            assert answer.status in (200, 204), answer
    assert [action for action, _ in await actions(strict, admin)] == [
        *("key.revoke", "dlq.purge", "job.cancel")
    ]


async def test_stream_bytes_are_the_sum_over_the_partitions(make: Make) -> None:
    gateway = make(queue_partitions=4)
    streams = [line.keys.queue for line in gateway.state.lines.clients[1:3]]
    for stream in streams:
        await gateway.redis.xadd(stream, {"job_id": "x"})
    sizes = [await gateway.redis.memory_usage(stream) for stream in streams]
    assert (await scrape(gateway)).value("gw_stream_bytes") == sum(sizes) > max(sizes) > 0


@pytest.mark.parametrize(("when", "number"), [("before", 5), ("meanwhile", 5), ("meanwhile", 2)])
async def test_wrong_key_type_ends_only_its_own_stream(
    make: Make, caplog: pytest.LogCaptureFixture, when: str, number: int
) -> None:
    gateway = make()
    *others, broken = [await gateway.create() for _ in range(number)]
    key = gateway.keys.events(broken)

    async def break_it() -> None:
        await gateway.redis.delete(key)
        await gateway.redis.set(key, "no stream")

    if when == "before":
        await break_it()
    streams = [await gateway.client.watch(job_id) for job_id in others]
    bad = await gateway.client.watch(broken)
    for stream in streams:
        await stream.event("queued")
    if when == "meanwhile":
        await bad.event("queued")
        await break_it()
    assert [block.event for block in await bad.rest()][-1] == "gone"
    if when == "meanwhile":
        assert f"event stream {key}: unreadable" in caplog.text
    for job_id, stream in zip(others, streams):
        await gateway.finish(job_id)
        assert [block.event for block in await stream.rest()] == ["done"]
    assert gateway.hub.clients == 0


async def test_samples_are_written_when_redis_is_full(backend: Backend) -> None:
    """Operators need them in that situation, and their size is bounded."""
    history = History(backend)
    await history.rings.acquire(LEASE)
    async with without_memory(history.redis):
        assert await history.rings.append(ONE_SECOND, sample(START), LEASE, "{}") is WriteOutcome.OK


async def test_a_frozen_redis_is_reported_until_it_recovers(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backend.url is not None
    async with Proxy(backend.url) as proxy:
        proxied = Backend(backend.name, proxy.url)
        gateway = make_gateway(proxied)
        assert (await scrape(gateway)).value("gw_up") == 1
        await read_status(gateway)
        proxy.silent = True
        with monkeypatch.context() as patched:
            for module in (metrics_route, status_route, workers):
                patched.setattr(module, "TIMEOUT_S", 0.2)
            assert (await asyncio.wait_for(scrape(gateway), 10)).value("gw_up") == 0
            assert (await asyncio.wait_for(read_status(gateway, 503), 10))["status"] == "fail"
            answer = await asyncio.wait_for(gateway.client.get("/v1/workers"), 10)
            check_problem(answer, 503, "store_unavailable")
        monkeypatch.setattr(metrics_route, "TIMEOUT_S", 5.0)
        proxy.silent = False

        async def back() -> bool:
            return (await scrape(gateway)).value("gw_up") == 1

        await eventually(back)
        await gateway.close()
        await proxied.close()
