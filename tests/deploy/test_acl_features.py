"""With the ACLs of the installer, metrics and documents work in both services."""

from __future__ import annotations

import pytest

from common.contracts.jobs import JobKeys
from common.contracts.rag import RagKeys, SearchMode
from common.features.rag.documents import DocumentRecord, RagReader
from common.jobs.store import Fence, WorkerIdentity
from common.observability.heartbeats import read_heartbeats
from common.process.usage import LoopLag
from common.redis.connection import async_client
from deploy.installer.layout import GATEWAY, WORKER
from tests.gateway.observability.metrics.test_metrics import scrape
from tests.support.deploy.acl import InstalledRedis
from tests.support.gateway.harness import make_gateway
from tests.support.servers import Backend
from tests.support.worker.harness import WorkerHarness
from tests.support.worker.rag import WordEmbedder, vector_of
from worker.features.rag.index.cache import NamespaceCache
from worker.features.rag.search import Searcher
from worker.features.rag.store import NewDocument, RagStore
from worker.features.rag.text.chunking import Span
from worker.features.rag.vectors.base import pack_vectors
from worker.monitoring.heartbeat import HeartbeatSender

pytestmark = pytest.mark.usefixtures("nothing_denied")
TEXT = "A sluice is a gate."


async def test_all_metrics_are_collected(installed_redis: InstalledRedis) -> None:
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
    for opened in (rig, gateway, theirs, ours):
        await opened.close()


@pytest.mark.parametrize("tenant", ["", "red"])
async def test_a_document_is_added_found_and_deleted(
    installed_redis: InstalledRedis, tenant: str
) -> None:
    admin, keys = installed_redis.admin, RagKeys("default", tenant)
    for attempt in (1, 2):
        admin.hset(f"job:{attempt}:lease", mapping={"attempt": "1", "token": "t"})
    async with (
        async_client(installed_redis.url(WORKER), connections=2) as working,
        async_client(installed_redis.url(GATEWAY), connections=2) as reading,
    ):
        store = RagStore(working, 10)
        shelves = NamespaceCache(working, store)
        searcher = Searcher(store, shelves, WordEmbedder())
        record = DocumentRecord("d", "Gates", "text/plain", 19, 1, "ab", "r", 0, "words-64")
        rows = pack_vectors([vector_of(TEXT)])
        document = NewDocument(record, TEXT, [Span(0, len(TEXT))], rows.data)
        await store.commit(Fence("job:1:lease", 1, "t"), "1", keys, document)
        await shelves.changed(keys, [], record, rows)
        for mode in (SearchMode.LEXICAL, SearchMode.VECTOR, SearchMode.AUTO):
            [hit] = (await searcher.find(keys, "gate", 5, mode)).hits
            assert hit.quote == TEXT
        reader = RagReader(reading)
        assert [each.id for each in (await reader.list(keys)).records] == ["d"]
        assert await reader.text(keys, "d", 0, 8) == "A sluice"
        assert await reader.namespaces(tenant) == ["default"]
        assert (await store.remove(Fence("job:2:lease", 1, "t"), keys, "d"))["deleted"]
        await shelves.changed(keys, [record])
        assert (await searcher.find(keys, "gate", 5)).hits == []
        await shelves.close()
    assert admin.keys("rag*") == []
