"""With the ACLs of the installer, gateway and worker can collect all metrics."""

from __future__ import annotations

from common.contracts.jobs import JobKeys
from common.jobs.store import WorkerIdentity
from common.observability.heartbeats import read_heartbeats
from common.process.usage import LoopLag
from deploy.installer.layout import GATEWAY, WORKER
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.deploy.acl import InstalledRedis
from tests.support.gateway.harness import make_gateway
from tests.support.servers import Backend
from tests.support.worker.harness import WorkerHarness
from worker.monitoring.heartbeat import HeartbeatSender


async def test_all_metrics_are_collected_and_nothing_is_denied(
    installed_redis: InstalledRedis,
) -> None:
    installed_redis.admin.flushall()
    installed_redis.admin.acl_log_reset()
    theirs = Backend(WORKER, installed_redis.url(WORKER))
    ours = Backend(GATEWAY, installed_redis.url(GATEWAY))
    rig = WorkerHarness(theirs, JobKeys(), WorkerIdentity("workers", "c1", 30_000, 600))
    gateway = make_gateway(ours)
    await rig.reader.ensure_group()
    await gateway.create()
    sender = HeartbeatSender(rig.consumers, rig.keys, 5.0, LoopLag())
    beat = await sender.run_once()
    assert (beat.queue.waiting, beat.queue.pending) == (1, 0)
    assert beat.queue.oldest_ms
    assert beat.queue.stream_bytes
    found = await scrape(gateway)
    assert found.value("gw_up") == 1
    assert found.value("gw_queue_depth") == 1
    assert found.value("gw_queue_oldest_age_seconds") < 60
    assert found.value("gw_stream_bytes") > 0
    assert found.value("gw_redis_memory_ratio") > 0
    assert found.value("gw_worker_up", worker="c1") == 1
    assert (await gateway.client.get("/v1/status")).status == 200
    assert (await gateway.client.get("/v1/workers")).json()["workers"]
    await sender.remove()
    assert await read_heartbeats(rig.client, rig.keys) == []
    assert installed_redis.refusals() == set()
    await rig.close()
    await gateway.close()
    await theirs.close()
    await ours.close()
