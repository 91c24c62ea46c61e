"""A change of a namespace is atomic and applied once, by the attempt that owns the job."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from common.contracts.queue import Answer
from common.contracts.rag import RagKeys
from common.contracts.workflow.keys import WorkflowKeys
from common.features.rag.documents import DocumentRecord
from common.jobs.store import Fence, Lease
from tests.support.waiting import eventually
from tests.support.worker.rag import RagMaker, RagWorker, WordEmbedder
from worker.errors import AttemptLost, TransientError
from worker.features.rag.errors import CorruptNamespace, NamespaceFull
from worker.features.rag.store import (
    _LUA,
    ATTACH,
    COMMIT,
    REMOVE,
    NewDocument,
    RagStore,
    WriteGuard,
    _render,
)
from worker.features.rag.text.chunking import Span

RECORD = DocumentRecord("doc", "Title", "text/plain", 5, 1, "ab", "r1")
DOCUMENT = NewDocument(RECORD, "Hällo", [Span(0, 5)], b"\0\0\0\0")


def fence_of(worker: RagWorker, lease: Lease) -> Fence:
    return Fence(worker.keys.lease(lease.job_id), lease.attempt, lease.token)


async def snapshot(worker: RagWorker) -> dict[bytes, Any]:
    found = await worker.client.keys(f"{worker.keys.tag}rag*")
    keys = [key for key in found if b"rag.upload" not in key]
    return {key: await worker.client.type(key) for key in keys}


async def test_an_attempt_that_lost_its_job_writes_nothing(rag: RagMaker) -> None:
    worker, lease, store, fence = await opened(rag)
    for lost in (
        fence._replace(attempt=lease.attempt + 1),
        fence._replace(token="other"),
        fence._replace(lease_key=worker.keys.lease("missing")),
    ):
        with pytest.raises(AttemptLost):
            await store.commit(lost, lease.job_id, worker.ns, DOCUMENT)
        with pytest.raises(AttemptLost):
            await store.remove(lost, worker.ns, "doc")
    assert await snapshot(worker) == {}


async def test_a_change_is_applied_once_over_retries(rag: RagMaker) -> None:
    worker, lease, store, fence = await opened(rag)
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
    assert record == replace(RECORD, added_ts=record.added_ts)
    # Another document with the same id, stored in between, is not overwritten by a later attempt.
    later = await worker.running(task="rag")
    newer = NewDocument(RECORD.with_embedder("x"), "Newer", [Span(0, 5)], b"")
    assert (await store.commit(fence_of(worker, later), later.job_id, worker.ns, newer))["replaced"]
    await worker.client.hset(fence.lease_key, mapping={"attempt": "2", "token": "t2"})  # type: ignore[misc]
    second = fence._replace(attempt=2, token="t2")
    assert (await store.commit(second, lease.job_id, worker.ns, DOCUMENT))["replaced"] is False
    assert await worker.client.get(worker.ns.text("doc")) == b"Newer"


async def test_keys_of_the_wrong_type_are_found_before_any_write(rag: RagMaker) -> None:
    worker, lease, store, fence = await opened(rag)
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


async def test_a_worker_killed_before_the_commit_leaves_nothing(rag: RagMaker) -> None:
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
    worker, lease, _, fence = await opened(rag)
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


@pytest.mark.real_redis
async def test_out_of_memory_stores_nothing(rag: RagMaker) -> None:
    worker, lease, store, fence = await opened(rag)
    await worker.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TransientError, match="memory"):
            await store.commit(fence, lease.job_id, worker.ns, DOCUMENT)
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


def test_each_script_documents_keys_arguments_and_answers() -> None:
    for name in ("commit", "remove", "attach"):
        source = (_LUA / f"{name}.lua").read_text()
        header, code = source.split("\n\nlocal ", 1)
        assert header.startswith(f"-- {name.upper()}: ")
        documented = header.partition("-- keys")[2].partition("-- args")[0]
        keys = re.findall(r"(?<= )(\d+) [a-z]", documented)
        assert [int(key) for key in keys] == list(range(1, len(keys) + 1))
        listed = header.partition("-- answers")[2]
        answers = set(re.findall(r"^--   ([a-z]+) ", listed, re.MULTILINE))
        assert answers == {word.lower() for word in re.findall(r"\$ANSWER_([A-Z]+)", code)}
        assert answers <= {answer.value for answer in Answer}
        assert "$" not in _render(name).replace("$NAME", "")
    assert sorted(path.stem for path in _LUA.iterdir()) == ["attach", "commit", "remove"]
    assert COMMIT.source != REMOVE.source != ATTACH.source
    keys = {RagKeys("default").text("d"), RagKeys("default", "t").text("d"), RagKeys("t").text("d")}
    assert len(keys) == 3


SAYS = {"apply.execution": "ex_1", "apply.status": "running"}


def named(document_id: str, revision: str = "r1") -> NewDocument:
    return replace(DOCUMENT, record=replace(RECORD, id=document_id, revision=revision))


async def test_one_job_adds_many_each_once(rag: RagMaker) -> None:
    worker, lease, store, fence, guard = await guarded(rag)
    await worker.client.hset(guard.key, mapping=dict(SAYS))
    for name in ("a", "b"):
        for _ in range(2):  # a reply was lost
            answer = await store.add(fence, lease.job_id, worker.ns, named(name), guard)
            assert answer is Answer.OK
    assert await store.ids(worker.ns) == {"a", "b"}
    before = await worker.client.hgetall(worker.ns.documents)
    taken = await store.add(fence, lease.job_id, worker.ns, named("a", "r2"), guard)
    assert taken is Answer.CONFLICT
    assert await worker.client.hgetall(worker.ns.documents) == before
    assert await worker.client.hgetall(guard.key)
    assert not await worker.client.exists(worker.ns.upload(lease.job_id))
    await store.add(fence, lease.job_id, worker.ns, named("c"), guard)
    with pytest.raises(NamespaceFull):
        await store.add(fence, lease.job_id, worker.ns, named("d"), guard)
    for raw in (b"{", b"7", b"[]"):  # an invalid record counts as another document
        await worker.client.hset(worker.ns.documents, "a", raw)
        answer = await store.add(fence, lease.job_id, worker.ns, named("a"), guard)
        assert answer is Answer.CONFLICT


async def test_nothing_is_added_once_the_guard_fails(rag: RagMaker) -> None:
    worker, lease, store, fence, guard = await guarded(rag)
    for says in ({}, {"apply.execution": "ex_1"}, {**SAYS, "apply.status": "cancelled"}):
        if says:
            await worker.client.hset(guard.key, mapping=dict(says))
        answer = await store.add(fence, lease.job_id, worker.ns, DOCUMENT, guard)
        assert answer is Answer.GONE
    with pytest.raises(AttemptLost):
        await store.add(fence._replace(token="other"), lease.job_id, worker.ns, DOCUMENT, guard)
    assert await snapshot(worker) == {}


async def opened(rag: RagMaker, limit: int = 10) -> tuple[RagWorker, Lease, RagStore, Fence]:
    """A running job of a worker, a store, and the fence of the job's attempt."""
    worker: RagWorker = await rag(opened=False)
    lease = await worker.running(task="rag")
    return worker, lease, RagStore(worker.client, limit), fence_of(worker, lease)


async def guarded(rag: RagMaker) -> tuple[RagWorker, Lease, RagStore, Fence, WriteGuard]:
    """The same, and a guard of a workflow's step."""
    worker, lease, store, fence = await opened(rag, 3)
    guard = WriteGuard(WorkflowKeys(worker.keys.tag).steps("x"), SAYS)
    return worker, lease, store, fence, guard
