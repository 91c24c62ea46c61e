"""A change of a namespace is atomic and applied once, by the attempt that owns the job."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from common.contracts.queue import Answer
from common.contracts.rag import RagKeys
from common.features.rag.documents import DocumentRecord
from common.jobs.store import Fence, Lease
from tests.conftest import eventually
from tests.worker.features.rag.kit import RagMaker, RagRig, WordEmbedder
from worker.errors import AttemptLost, TransientError
from worker.features.rag.errors import CorruptNamespace
from worker.features.rag.store import _LUA, ATTACH, COMMIT, REMOVE, NewDocument, RagStore, _render
from worker.features.rag.text.chunking import Span

RECORD = DocumentRecord("doc", "Title", "text/plain", 5, 1, "ab", "r1")
DOCUMENT = NewDocument(RECORD, "Hällo", [Span(0, 5)], b"\0\0\0\0")


def fence_of(worker: RagRig, lease: Lease) -> Fence:
    return Fence(worker.keys.lease(lease.job_id), lease.attempt, lease.token)


async def snapshot(worker: RagRig) -> dict[bytes, Any]:
    found = await worker.client.keys(f"{worker.keys.tag}rag*")
    keys = [key for key in found if b"rag.upload" not in key]
    return {key: await worker.client.type(key) for key in keys}


async def test_an_attempt_that_lost_its_job_writes_nothing(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="rag")
    store = RagStore(worker.client, 10)
    dead = [
        Fence(worker.keys.lease(lease.job_id), lease.attempt + 1, lease.token),
        Fence(worker.keys.lease(lease.job_id), lease.attempt, "other"),
        Fence(worker.keys.lease("nobody"), lease.attempt, lease.token),
    ]
    for fence in dead:
        with pytest.raises(AttemptLost):
            await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
        with pytest.raises(AttemptLost):
            await store.remove(fence, worker.ns, "doc")
    assert await snapshot(worker) == {}


async def test_a_change_is_applied_once_over_retries(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="rag")
    store, fence = RagStore(worker.client, 10), fence_of(worker, lease)
    await worker.client.set(worker.ns.upload(lease.job_id), b"x")
    first = await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
    version = await store.version(worker.ns)
    assert first == await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
    assert first["replaced"] is False
    assert await store.version(worker.ns) == version
    assert not await worker.client.exists(worker.ns.upload(lease.job_id))
    assert await worker.client.get(worker.ns.text("doc")) == "Hällo".encode()
    assert await worker.client.get(worker.ns.chunks("doc")) == b"[[0,5]]"
    [record] = await store.records(worker.ns, ["doc"])
    assert record == DocumentRecord(**{**RECORD.__dict__, "added_ts": record.added_ts})


async def test_keys_of_the_wrong_type_are_found_before_any_write(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="rag")
    store, fence = RagStore(worker.client, 10), fence_of(worker, lease)
    for key in (worker.ns.documents, worker.ns.order, worker.ns.namespaces):
        await worker.client.rpush(key, "x")  # type: ignore[misc]
        before = await snapshot(worker)
        with pytest.raises(CorruptNamespace):
            await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
        with pytest.raises(CorruptNamespace):
            await store.remove(fence, worker.ns, "doc")
        assert await snapshot(worker) == before
        await worker.client.delete(key)
    await worker.client.set(worker.ns.version, "nonsense")
    await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
    assert await store.version(worker.ns) > 1_700_000_000_000_000


async def test_a_worker_killed_before_the_commit_leaves_nothing(
    rag: RagMaker,
) -> None:
    slow, quick = WordEmbedder(), WordEmbedder()
    slow.gate.clear()
    one = await rag(slow, consumer="one")
    payload = {"op": "ingest", "upload": True, "document": {"id": "doc"}}
    job_id = await one.submit(payload, upload=b"Read, cut, embedded.")
    await eventually(lambda: slow.asked)
    assert await snapshot(one) == {}
    # It loses its job between embedding and commit.
    lease_key = one.keys.lease(job_id)
    await one.client.hset(lease_key, "token", "somebody-else")  # type: ignore[misc]
    slow.gate.set()
    await eventually(lambda: not one.executor.running)
    assert await snapshot(one) == {}
    await one.stop()
    # Another worker takes over.
    await one.client.hset(lease_key, mapping={"deadline_ms": "0", "token": "-x"})  # type: ignore[misc]
    two = await rag(quick, consumer="two", opened=False)
    await two.open()
    [message] = await two.client.xpending_range(two.keys.queue, two.worker.group, "-", "+", count=1)
    await two.client.xclaim(
        two.keys.queue, two.worker.group, "two", 0, [message["message_id"]], justid=True
    )
    two.consumer.deferred.add(message["message_id"].decode(), 0)
    ended = await two.end(job_id)
    assert ended.result["embedder"] == "words-64"
    assert await two.found("embedded", mode="lexical") == ["doc"]
    assert [data["attempt"] for data in ended.events("running")] == [1, 2]


async def test_an_attempt_after_the_commit_returns_its_outcome(rag: RagMaker) -> None:
    """Another document with the same id, stored in between, is not overwritten."""
    worker = await rag(opened=False)
    lease = await worker.running(task="rag")
    store, fence = RagStore(worker.client, 10), fence_of(worker, lease)
    await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
    later = await worker.running(task="rag")
    newer = NewDocument(RECORD.with_embedder("x"), "Newer", [Span(0, 5)], b"")
    assert (await store.commit(fence_of(worker, later), later.job_id, worker.ns, newer))["replaced"]
    # The first job again, in a second attempt.
    await worker.client.hset(fence.lease_key, mapping={"attempt": "2", "token": "t2"})  # type: ignore[misc]
    again = await store.commit(
        fence._replace(attempt=2, token="t2"), lease.job_id, worker.ns, DOCUMENT
    )
    assert again["replaced"] is False
    assert await worker.client.get(worker.ns.text("doc")) == b"Newer"


class Flaky:
    """A client that sometimes loses commands or replies."""

    def __init__(self, client: Any, losses: list[str]) -> None:
        self._client = client
        self._losses = losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def execute_command(self, *args: Any) -> Any:
        loss = self._losses.pop(0) if self._losses else ""
        if loss == "command":
            raise RedisConnectionError("gone")
        reply = await self._client.execute_command(*args)
        if loss == "reply":
            raise RedisConnectionError("gone")
        return reply


async def test_lost_replies_do_not_double_anything(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="rag")
    fence = fence_of(worker, lease)
    client: Any = Flaky(worker.client, ["command", "reply", "reply"])
    store = RagStore(client, 10)
    outcome = await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
    assert outcome["replaced"] is False
    version = await store.version(worker.ns)
    client._losses += ["reply"]
    assert await store.attach(worker.ns, b"not it", RECORD, "e", b"") is False
    other = await worker.running(task="rag")
    client._losses += ["reply"]
    assert await store.remove(fence_of(worker, other), worker.ns, "doc") == {"deleted": True}
    assert version > 0
    client._losses += ["command"] * 1000
    with pytest.raises(TransientError, match="unavailable"):
        await RagStore(client, 10, retry_for_s=0.1).commit(fence, lease.job_id, worker.ns, DOCUMENT)


async def test_out_of_memory_stores_nothing(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="rag")
    if not worker.backend.is_real:
        pytest.skip("fakeredis has no memory limit")
    await worker.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TransientError, match="memory"):
            await RagStore(worker.client, 10).commit(
                fence_of(worker, lease), lease.job_id, worker.ns, DOCUMENT
            )
        assert await snapshot(worker) == {}
    finally:
        await worker.client.config_set("maxmemory", 0)


async def test_canceled_jobs_store_nothing(rag: RagMaker) -> None:
    embedder = WordEmbedder()
    embedder.gate.clear()
    worker = await rag(embedder)
    job_id = await worker.submit({"op": "ingest", "document": {"text": "Never mind."}})
    await eventually(lambda: embedder.asked)
    await worker.cancel(job_id)
    ended = await worker.end(job_id)
    assert ended.status == "canceled"
    assert ended.events("canceled")[0]["stage"] == "cooperative"
    assert await snapshot(worker) == {}


@pytest.mark.parametrize("name", ["commit", "remove", "attach"])
def test_each_script_documents_keys_arguments_and_answers(name: str) -> None:
    source = (_LUA / f"{name}.lua").read_text()
    header, code = source.split("\n\nlocal ", 1)
    assert header.startswith(f"-- {name.upper()}: ")
    keys = re.findall(r"(?<= )(\d+) [a-z]", header.partition("-- keys")[2].partition("-- args")[0])
    assert [int(key) for key in keys] == list(range(1, len(keys) + 1))
    answers = set(re.findall(r"^--   ([a-z]+) ", header.partition("-- answers")[2], re.MULTILINE))
    assert answers == {word.lower() for word in re.findall(r"\$ANSWER_([A-Z]+)", code)}
    assert answers <= {answer.value for answer in Answer}
    assert "$" not in _render(name).replace("$NAME", "")
    assert sorted(path.stem for path in _LUA.iterdir()) == ["attach", "commit", "remove"]
    assert COMMIT.source != REMOVE.source != ATTACH.source


def test_other_tenants_have_other_keys() -> None:
    keys = {RagKeys("default").text("d"), RagKeys("default", "t").text("d"), RagKeys("t").text("d")}
    assert len(keys) == 3
