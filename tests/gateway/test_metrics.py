"""`GET /metrics`: the text exposition format, cheap, and never an error."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any

import pytest

from common.audit_report import AuditReport, store_report
from gateway.routes import metrics as route
from gateway.routes.metrics import Metric, render
from tests.backends import Backend
from tests.common.kit import Proxy
from tests.conftest import eventually
from tests.gateway.conftest import Gateway, make_gateway

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
ALWAYS = {"sluice_up", "sluice_sse_clients"}
OF_REDIS = {
    "sluice_audit_jobs_checked_total",
    "sluice_audit_last_duration_seconds",
    "sluice_audit_last_timestamp_seconds",
    "sluice_audit_last_violations",
    "sluice_audit_violations_total",
    "sluice_dead_letters",
    "sluice_jobs_finished_total",
    "sluice_queue_lag",
    "sluice_queue_length",
    "sluice_queue_pending",
    "sluice_scheduled_jobs",
}


async def scrape(gateway: Gateway) -> dict[str, float]:
    """What Prometheus would make of it."""
    answer = await gateway.client.get("/metrics")
    assert answer.status == 200
    assert answer.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    return parse(answer.body.decode())


def parse(text: str) -> dict[str, float]:
    """Strict: each series is a HELP, a TYPE and a sample, once."""
    assert text.endswith("\n")
    lines = text.splitlines()
    found: dict[str, float] = {}
    for help_line, type_line, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, value = sample.split(" ")
        assert NAME.fullmatch(name)
        assert name not in found
        assert help_line.startswith(f"# HELP {name} ")
        kind = type_line.removeprefix(f"# TYPE {name} ")
        assert kind == ("counter" if name.endswith("_total") else "gauge")
        assert math.isfinite(float(value))
        found[name] = float(value)
    return found


async def test_an_empty_redis(gateway: Gateway) -> None:
    found = await scrape(gateway)
    assert set(found) == ALWAYS | OF_REDIS
    assert found.pop("sluice_up") == 1
    assert set(found.values()) == {0}


async def test_what_is_there_is_counted(gateway: Gateway) -> None:
    ids = [await gateway.create() for _ in range(5)]
    group = gateway.state.settings.worker_group
    await gateway.redis.xgroup_create(gateway.keys.queue, group, id="0")
    await gateway.redis.xgroup_create(gateway.keys.queue, "others", id="$")
    reply = await gateway.redis.xreadgroup(group, "c", {gateway.keys.queue: ">"}, count=3)
    await gateway.redis.xack(gateway.keys.queue, group, reply[0][1][0][0])
    await gateway.redis.zadd(gateway.keys.scheduled, {"a": 1, "b": 2})
    await gateway.redis.xadd(gateway.keys.dead_letters, {"x": "y"})
    await gateway.redis.set(gateway.keys.finished, 1234567890123)
    await store_report(gateway.redis, gateway.keys, AuditReport(1_760_000_000_123, 7, 250, (), 2))
    stream = await gateway.client.watch(ids[0])
    await stream.next()
    found = await scrape(gateway)
    assert found.pop("sluice_queue_lag", 2) == 2  # Redis 6.2 does not know
    assert found == {
        "sluice_up": 1,
        "sluice_sse_clients": 1,
        "sluice_queue_length": 5,
        "sluice_queue_pending": 2,
        "sluice_scheduled_jobs": 2,
        "sluice_dead_letters": 1,
        "sluice_jobs_finished_total": 1234567890123,
        "sluice_audit_jobs_checked_total": 7,
        "sluice_audit_violations_total": 2,
        "sluice_audit_last_violations": 2,
        "sluice_audit_last_timestamp_seconds": 1_760_000_000.123,
        "sluice_audit_last_duration_seconds": 0.25,
    }


async def test_without_a_group_everything_is_still_to_be_delivered(gateway: Gateway) -> None:
    await gateway.create()
    found = await scrape(gateway)
    assert (found["sluice_queue_lag"], found["sluice_queue_pending"]) == (1, 0)


async def test_one_round_trip(fake_gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    client = fake_gateway.state.client
    trips = 0
    pipeline = client.pipeline

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal trips
        trips += 1
        return pipeline(*args, **kwargs)

    async def unexpected(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(args)

    monkeypatch.setattr(client, "pipeline", counted)
    monkeypatch.setattr(client, "execute_command", unexpected)
    assert (await scrape(fake_gateway))["sluice_up"] == 1
    assert trips == 1


async def test_redis_away(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(state: Any) -> Any:
        raise ConnectionError("gone")

    monkeypatch.setattr(route, "_ask_redis", away)
    assert await scrape(gateway) == {"sluice_up": 0, "sluice_sse_clients": 0}


async def test_a_silent_redis(fake_gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(state: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(route, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(route, "_ask_redis", silent)
    found = await asyncio.wait_for(scrape(fake_gateway), 5)
    assert found == {"sluice_up": 0, "sluice_sse_clients": 0}


async def test_a_redis_that_falls_silent_and_comes_back(
    real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "TIMEOUT_S", 0.2)
    assert real_backend.url is not None
    async with Proxy(real_backend.url) as proxy:
        behind = Backend(real_backend.name, proxy.url)
        gateway = make_gateway(behind)
        assert (await scrape(gateway))["sluice_up"] == 1
        proxy.silent = True
        assert (await asyncio.wait_for(scrape(gateway), 5))["sluice_up"] == 0
        proxy.silent = False

        async def back() -> bool:
            return (await scrape(gateway))["sluice_up"] == 1

        await eventually(back)
        await gateway.close()
        await behind.close()


async def test_keys_that_hold_something_else_are_left_out(gateway: Gateway) -> None:
    for key in (gateway.keys.queue, gateway.keys.scheduled, gateway.keys.dead_letters):
        await gateway.redis.set(key, "x")
    await gateway.redis.rpush(gateway.keys.finished, "x")  # type: ignore[misc]
    found = await scrape(gateway)
    assert found.pop("sluice_up") == 1
    left_out = {"sluice_queue_lag", "sluice_queue_length", "sluice_queue_pending"}
    left_out |= {"sluice_scheduled_jobs", "sluice_dead_letters", "sluice_jobs_finished_total"}
    assert set(found) == (ALWAYS | OF_REDIS) - left_out - {"sluice_up"}


async def test_odd_numbers(gateway: Gateway) -> None:
    await gateway.redis.set(gateway.keys.finished, b"\xffmany")
    odd: Any = {"last_ts": "nan", "last_violations": "1e400", "violations_total": b"\xff"}
    await gateway.redis.hset(gateway.keys.audit, mapping=odd)  # type: ignore[misc]
    found = await scrape(gateway)
    assert found["sluice_jobs_finished_total"] == 0
    assert found["sluice_audit_last_violations"] == 0


def test_numbers_are_written_whole() -> None:
    text = render([Metric("a", "gauge", "b", 12345678901234), Metric("c", "gauge", "d", 0.5)])
    assert "\na 12345678901234\n" in text
    assert text.endswith("c 0.5\n")
