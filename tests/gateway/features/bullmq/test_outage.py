"""Redis unreachable, frozen, full or separate; a missing package; a host under pressure."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from sluice.common.errors import SettingsError
from sluice.common.features.bullmq import package
from sluice.common.settings.gateway import GatewaySettings
from sluice.gateway.app import create_app
from sluice.gateway.features.bullmq import queues
from tests.gateway.observability.test_outage import Redis, check_refused
from tests.support.gateway.asgi import Answer, Client
from tests.support.gateway.bullmq import QueueApi
from tests.support.gateway.harness import SHORT_S, check_problem, make_gateway
from tests.support.servers import BUNDLED, Backend, RealServer, require_binary


@pytest.fixture
def server() -> Iterator[Redis]:
    server = Redis(require_binary(BUNDLED))
    yield server
    server.thaw()
    server.close()


@pytest.fixture
async def own_api(server: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueApi]:
    monkeypatch.setattr(queues, "REDIS_RETRY_S", 30.0)  # a busy machine is no fault of Redis
    backend = Backend("own", server.url)
    gateway = make_gateway(backend, bullmq_add_queues="video")
    yield QueueApi(gateway)
    await gateway.close()
    await backend.close()


async def everything(api: QueueApi) -> list[Answer]:
    return await asyncio.gather(
        api.post({"name": "a"}),
        api.post({"name": "a"}, {"idempotency-key": "k"}),
        api.get("1"),
        api.delete("1"),
        api.gateway.client.get(f"{api.path}/jobs/1/events"),
    )


async def check_away(api: QueueApi, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = api.gateway.bullmq.find(api.queue)._runner
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_retry_for_s", SHORT_S)
        await check_refused(lambda: everything(api))


async def test_requests_fail_while_redis_is_down_and_recover(
    own_api: QueueApi, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_api.add()
    stream = await own_api.watch()
    await stream.event("hello")
    server.stop()
    await check_away(own_api, monkeypatch)
    answer = await own_api.gateway.client.get(f"{own_api.path}/events")
    check_problem(answer, 503, "store_unavailable")
    server.start()
    assert (await own_api.post({"name": "a"})).json()["outcome"] == "added"
    assert (await stream.event("added")).event == "added", "the stream has continued"


async def test_requests_fail_while_redis_is_frozen_and_recover(
    own_api: QueueApi, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await own_api.add()
    server.freeze()
    await check_away(own_api, monkeypatch)
    server.thaw()
    assert (await own_api.get(job_id)).status in (200, 404)  # the frozen DELETE may have come


async def test_a_full_redis_gets_503(own_api: QueueApi, server: Redis) -> None:
    job_id = await own_api.add()
    server.client.config_set("maxmemory", "1")
    check_problem(await own_api.post({"name": "a"}), 503, "store_unavailable")
    server.client.config_set("maxmemory", "0")
    assert (await own_api.get(job_id)).status == 200


async def test_the_queues_may_be_on_another_redis(
    real_server: Callable[[str], RealServer], server: Redis
) -> None:
    """As `sluice.gateway.lifespan` connects them."""
    main, other = real_server(BUNDLED), server
    main.client.flushall()
    settings = GatewaySettings(
        redis_url=main.url, bullmq_redis_url=other.url, bullmq_add_queues="video"
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        client = Client(app)
        answer = await client.send("POST", "/v1/bullmq/video/jobs", {}, {"name": "a"})
        assert answer.status == 202
        stream = await client.begin("GET", "/v1/bullmq/video/jobs/1/events").start()
        assert (await stream.event("waiting")).event == "waiting"
        await client.close()
    assert other.client.exists("bull:video:1")
    assert not main.client.keys("bull:*")


@pytest.mark.real_redis
async def test_a_gateway_under_pressure_rejects_jobs(
    api: QueueApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.gateway.state.pressure, "refusing", True)
    check_problem(await api.post({"name": "a"}), 503, "under_pressure")


def test_an_unusable_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    settings = GatewaySettings(bullmq_add_queues="video")
    with monkeypatch.context() as patched:
        patched.setattr(package.importlib.metadata, "version", not_installed)
        create_app(GatewaySettings())  # no queue is configured
        with pytest.raises(SettingsError, match=r"BULLMQ_ADD_QUEUES needs .*pip install"):
            create_app(settings)
        patched.setattr(package.importlib.metadata, "version", lambda name: "9.9.9")
        with pytest.raises(SettingsError, match=r"9\.9\.9 is installed"):
            create_app(settings)
    monkeypatch.setattr(package, "_script_path", lambda script: Path("/nowhere"))
    with pytest.raises(SettingsError, match="addStandardJob"):
        create_app(settings)
    with pytest.raises(ValueError, match="not a queue name"):
        GatewaySettings(bullmq_add_queues="a:b")
