"""The probe job of an installation: over HTTP, or directly in Redis if an API key is required."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.installer import probe
from deploy.installer.layout import ADMIN, GATEWAY, WORKER
from deploy.installer.probe import Gateway, ProbeFailed
from deploy.installer.resp import RedisCommandError, RedisUnavailable, Resp
from sluice.common.contracts.jobs import JobKeys
from sluice.common.version import reported_version
from tests.support.deploy.acl import PASSWORDS, InstalledRedis
from tests.support.processes.base import Spawn
from tests.support.processes.gateway import StartGateway, free_port, gateway_starter

pytestmark = pytest.mark.process


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    yield from gateway_starter(tmp_path)


@pytest.fixture
def admin(installed_redis: InstalledRedis) -> Iterator[Resp]:
    installed_redis.admin.flushall()
    with Resp(installed_redis.socket, ADMIN, PASSWORDS[ADMIN]) as redis:
        yield redis


@pytest.mark.slow("starts a gateway and worker")
@pytest.mark.parametrize("auth", ["off", "required"])
def test_a_probe_succeeds_only_with_a_worker(
    installed_redis: InstalledRedis,
    start_gateway: StartGateway,
    spawn: Spawn,
    admin: Resp,
    auth: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start_gateway(installed_redis.url(GATEWAY), AUTH=auth)
    gateway = Gateway(f"127.0.0.1:{process.port}")
    gateway.ready()
    with monkeypatch.context() as short:
        short.setattr(probe, "PROBE_TIMEOUT_S", 1)
        with pytest.raises(ProbeFailed):
            probe.run_job(gateway, admin, JobKeys())
    spawn("worker.echo_worker", redis_url=installed_redis.url(WORKER)).wait_for_line("takes jobs")
    probe.run_job(gateway, admin, JobKeys())
    assert admin.number("XLEN", "jobs:stream") <= 2


def test_a_missing_gateway_is_reported() -> None:
    with pytest.raises(ProbeFailed, match="no response"):
        Gateway(f"0.0.0.0:{free_port()}").ready()


def test_the_minimal_redis_client(installed_redis: InstalledRedis, admin: Resp) -> None:
    assert admin.execute("SET", "k", "vä lue") == "OK"
    assert admin.execute("GET", "k") == "vä lue"
    assert admin.execute("GET", "none") is None
    assert admin.execute("MGET", "k", "none") == ["vä lue", None]
    assert admin.number("DBSIZE") == 1
    assert reported_version(admin.info("server"))[1] == installed_redis.server.version_text
    with pytest.raises(RedisCommandError, match="unknown command"):
        admin.execute("NONSENSE")
    with pytest.raises(RedisCommandError, match="WRONGPASS"):
        Resp(installed_redis.socket, ADMIN, "wrong")
    with pytest.raises(RedisUnavailable) as away:
        Resp(installed_redis.dir / "none")
    assert "systemctl start redis.service" in away.value.fix
