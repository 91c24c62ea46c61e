"""A server that cannot write to its disk refuses PING and writes (MISCONF), but answers reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from sluice.common.process import embedded_redis
from sluice.common.redis import pipelined
from sluice.common.redis.connection import async_client
from sluice.common.redis.pipelined import PipelinedConnection, keep_subscribed
from sluice.ops.doctor.checks import persistence
from sluice.ops.doctor.checks import redis as checks
from sluice.ops.doctor.finding import Health
from sluice.ops.doctor.redis_server import RedisServer
from sluice.ops.redis_target import RedisTarget
from tests.ops.doctor.machines import finding_of, make_machine
from tests.support.servers import BUNDLED, RealServer, require_binary


@pytest.fixture
def server() -> Iterator[RealServer]:
    """A server whose last snapshot failed, because a directory has the name of its file."""
    server = RealServer(require_binary(BUNDLED), "--dbfilename", "taken")
    try:
        (server.dir / "taken" / "file").mkdir(parents=True)
        server.client.set("word", "kept")
        server.client.config_set("save", "3600 1")
        server.client.bgsave()
        while server.client.info("persistence")["rdb_last_bgsave_status"] == "ok":
            pass
        with pytest.raises(redis.ResponseError, match="MISCONF"):
            server.client.ping()
        yield server
    finally:
        server.client.config_set("save", "")  # it does not end while a snapshot fails
        server.close()


async def test_a_health_check_does_not_prevent_reads(server: RealServer) -> None:
    async with async_client(server.url, connections=1) as client:
        client.connection_pool.connection_kwargs["health_check_interval"] = 1e-9
        for _ in range(3):
            assert await client.get("word") == b"kept"


async def test_a_subscription_is_kept(
    server: RealServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipelined, "PING_INTERVAL_S", 1)
    subscribed: asyncio.Queue[None] = asyncio.Queue()
    wire = PipelinedConnection(server.url, on_message=lambda message: None)
    with caplog.at_level(logging.WARNING):
        task = asyncio.create_task(
            keep_subscribed(wire, "news", lambda: subscribed.put_nowait(None), "no news")
        )
        for _ in range(2):
            await asyncio.wait_for(subscribed.get(), 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await wire.aclose()
    assert not caplog.records


def test_the_doctor_names_the_cause(server: RealServer, tmp_path: Path) -> None:
    target = RedisServer(RedisTarget(server.url, "REDIS_URL"))
    machine = make_machine(tmp_path, redis=target)
    assert finding_of(checks.reachable, machine).status is Health.OK
    assert finding_of(checks.latency, machine).status in (Health.OK, Health.WARN)
    found = finding_of(persistence.last_write, machine)
    assert (found.status, found.seen) == (Health.FAIL, "the last snapshot failed")


def test_the_private_redis_counts_as_started(server: RealServer) -> None:
    assert embedded_redis._answers(server.dir / "s")
