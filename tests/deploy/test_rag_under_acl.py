"""Documents under the ACLs of the installer: the worker reads and writes, the gateway reads."""

from __future__ import annotations

import pytest

from common.contracts.rag import RagKeys, SearchMode
from common.features.rag.documents import DocumentRecord, RagReader
from common.jobs.store import Fence
from common.redis.connection import async_client
from deploy.installer.layout import GATEWAY, WORKER
from tests.support.deploy.acl import InstalledRedis
from tests.support.worker.rag import WordEmbedder, vector_of
from worker.features.rag.index.cache import NamespaceCache
from worker.features.rag.search import Searcher
from worker.features.rag.store import NewDocument, RagStore
from worker.features.rag.text.chunking import Span
from worker.features.rag.vectors.base import pack_vectors

TEXT = "A sluice is a gate."


@pytest.mark.parametrize("tenant", ["", "red"])
async def test_a_document_is_added_found_and_deleted(
    installed_redis: InstalledRedis, tenant: str
) -> None:
    admin, keys = installed_redis.admin, RagKeys("default", tenant)
    admin.flushall()
    admin.acl_log_reset()
    for attempt in (1, 2):
        admin.hset(f"job:{attempt}:lease", mapping={"attempt": "1", "token": "t"})
    working = async_client(installed_redis.url(WORKER), connections=2)
    reading = async_client(installed_redis.url(GATEWAY), connections=2)
    try:
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
    finally:
        await working.aclose()
        await reading.aclose()
    assert installed_redis.refusals() == set()
    assert admin.keys("rag*") == []
