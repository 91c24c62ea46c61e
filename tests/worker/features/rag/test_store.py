"""A change of a namespace is atomic and applied once, by the attempt that owns the job."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from sluice.common.contracts.queue import Answer
from sluice.common.contracts.rag import RagKeys
from sluice.common.contracts.workflow.keys import WorkflowKeys
from sluice.common.features.rag.documents import DocumentRecord
from sluice.common.jobs.store import Fence
from sluice.worker.errors import AttemptLost, TransientError
from sluice.worker.features.rag import store as scripts
from sluice.worker.features.rag.errors import CorruptNamespace, NamespaceFull
from sluice.worker.features.rag.store import NewDocument, RagStore, WriteGuard
from sluice.worker.features.rag.text.chunking import Span
from tests.support.waiting import eventually
from tests.support.worker.rag import RagMaker, RagWorker, WordEmbedder

RECORD = DocumentRecord("doc", "Title", "text/plain", 5, 1, "ab", "r1")
DOCUMENT = NewDocument(RECORD, "Hällo", [Span(0, 5)], b"\0\0\0\0")


SAYS = {"apply.execution": "ex_1", "apply.status": "running"}


def named(document_id: str, revision: str = "r1") -> NewDocument:
    return replace(DOCUMENT, record=replace(RECORD, id=document_id, revision=revision))


class RunningJob(NamedTuple):
    """A running job, its attempt's fence, and a guard of a workflow's step."""

    worker: RagWorker
    job_id: str
    fence: Fence
    store: RagStore
    guard: WriteGuard

    async def commit(self, document: NewDocument = DOCUMENT, **fence: Any) -> dict[str, Any]:
        """Commit as this attempt, or as one with another fence."""
        fenced = self.fence._replace(**fence)
        return await self.store.commit(fenced, self.job_id, self.worker.ns, document)

    async def add(self, document: NewDocument = DOCUMENT, **fence: Any) -> Answer:
        fenced = self.fence._replace(**fence)
        return await self.store.add(fenced, self.job_id, self.worker.ns, document, self.guard)

    async def remove(self, **fence: Any) -> dict[str, Any]:
        return await self.store.remove(self.fence._replace(**fence), self.worker.ns, "doc")


async def running_job(worker: RagWorker, limit: int = 3) -> RunningJob:
    lease = await worker.running(task="rag")
    fence = Fence(worker.keys.lease(lease.job_id), lease.attempt, lease.token)
    guard = WriteGuard(WorkflowKeys(worker.keys.tag).steps("x"), SAYS)
    return RunningJob(worker, lease.job_id, fence, RagStore(worker.client, limit), guard)


@pytest.fixture
async def job(rag: RagMaker) -> RunningJob:
    return await running_job(await rag(opened=False))


async def snapshot(worker: RagWorker) -> dict[bytes, Any]:
    found = await worker.client.keys(f"{worker.keys.tag}rag*")
    keys = [key for key in found if b"rag.upload" not in key]
    return {key: await worker.client.type(key) for key in keys}


async def test_an_attempt_that_lost_its_job_writes_nothing(job: RunningJob) -> None:
    lost: tuple[dict[str, Any], ...] = (
        {"attempt": job.fence.attempt + 1},
        {"token": "other"},
        {"lease_key": job.worker.keys.lease("missing")},
    )
    for fence in lost:
        with pytest.raises(AttemptLost):
            await job.commit(**fence)
        with pytest.raises(AttemptLost):
            await job.remove(**fence)
    assert await snapshot(job.worker) == {}


async def test_a_change_is_applied_once_over_retries(job: RunningJob) -> None:
    worker, client, ns = job.worker, job.worker.client, job.worker.ns
    await client.set(ns.upload(job.job_id), b"x")
    first = await job.commit()
    version = await job.store.version(ns)
    assert first == await job.commit()
    assert first["replaced"] is False
    assert await job.store.version(ns) == version
    assert not await client.exists(ns.upload(job.job_id))
    assert await client.get(ns.text("doc")) == "Hällo".encode()
    assert await client.get(ns.chunks("doc")) == b"[[0,5]]"
    [record] = await job.store.records(ns, ["doc"])
    assert record == replace(RECORD, added_ts=record.added_ts)
    # Another document with the same id, stored in between, is not overwritten by a later attempt.
    newer = NewDocument(RECORD.with_embedder("x"), "Newer", [Span(0, 5)], b"")
    assert (await (await running_job(worker)).commit(newer))["replaced"]
    await client.hset(job.fence.lease_key, mapping={"attempt": "2", "token": "t2"})  # type: ignore[misc]
    assert (await job.commit(attempt=2, token="t2"))["replaced"] is False
    assert await client.get(ns.text("doc")) == b"Newer"


async def test_keys_of_the_wrong_type_are_found_before_any_write(job: RunningJob) -> None:
    client, ns = job.worker.client, job.worker.ns
    for key in (ns.documents, ns.order, ns.namespaces):
        await client.rpush(key, "x")  # type: ignore[misc]
        before = await snapshot(job.worker)
        with pytest.raises(CorruptNamespace):
            await job.commit()
        with pytest.raises(CorruptNamespace):
            await job.remove()
        assert await snapshot(job.worker) == before
        await client.delete(key)
    await client.set(ns.version, "nonsense")
    await job.commit()
    assert await job.store.version(ns) > 1_700_000_000_000_000


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
    two = await rag(quick, consumer="two")
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


async def test_lost_replies_do_not_double_anything(job: RunningJob) -> None:
    losses = ["command", "reply", "reply"]
    client: Any = Flaky(job.worker.client, losses)
    job = job._replace(store=RagStore(client, 10))
    assert (await job.commit())["replaced"] is False
    assert await job.store.version(job.worker.ns) > 0
    losses.append("reply")
    assert await job.store.attach(job.worker.ns, b"not it", RECORD, "e", b"") is False
    losses.append("reply")
    other = (await running_job(job.worker))._replace(store=job.store)
    assert await other.remove() == {"deleted": True}
    losses += ["command"] * 1000
    with pytest.raises(TransientError, match="unavailable"):
        await job._replace(store=RagStore(client, 10, retry_for_s=0.1)).commit()


@pytest.mark.real_redis
async def test_out_of_memory_stores_nothing(job: RunningJob) -> None:
    client = job.worker.client
    await client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TransientError, match="memory"):
            await job.commit()
        assert await snapshot(job.worker) == {}
    finally:
        await client.config_set("maxmemory", 0)


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
        source = (scripts._LUA / f"{name}.lua").read_text()
        header, code = source.split("\n\nlocal ", 1)
        assert header.startswith(f"-- {name.upper()}: ")
        documented = header.partition("-- keys")[2].partition("-- args")[0]
        keys = re.findall(r"(?<= )(\d+) [a-z]", documented)
        assert [int(key) for key in keys] == list(range(1, len(keys) + 1))
        listed = header.partition("-- answers")[2]
        answers = set(re.findall(r"^--   ([a-z]+) ", listed, re.MULTILINE))
        assert answers == {word.lower() for word in re.findall(r"\$ANSWER_([A-Z]+)", code)}
        assert answers <= {answer.value for answer in Answer}
        assert "$" not in scripts._render(name).replace("$NAME", "")
    assert sorted(path.stem for path in scripts._LUA.iterdir()) == ["attach", "commit", "remove"]
    assert scripts.COMMIT.source != scripts.REMOVE.source != scripts.ATTACH.source
    keys = {RagKeys("default").text("d"), RagKeys("default", "t").text("d"), RagKeys("t").text("d")}
    assert len(keys) == 3


async def test_one_job_adds_many_each_once(job: RunningJob) -> None:
    client, ns = job.worker.client, job.worker.ns
    await client.hset(job.guard.key, mapping=dict(SAYS))
    for name in ("a", "b"):
        for _ in range(2):  # a reply was lost
            assert await job.add(named(name)) is Answer.OK
    assert await job.store.ids(ns) == {"a", "b"}
    before = await client.hgetall(ns.documents)
    assert await job.add(named("a", "r2")) is Answer.CONFLICT
    assert await client.hgetall(ns.documents) == before
    assert await client.hgetall(job.guard.key)
    assert not await client.exists(ns.upload(job.job_id))
    await job.add(named("c"))
    with pytest.raises(NamespaceFull):
        await job.add(named("d"))
    for raw in (b"{", b"7", b"[]"):  # an invalid record counts as another document
        await client.hset(ns.documents, "a", raw)
        assert await job.add(named("a")) is Answer.CONFLICT


async def test_nothing_is_added_once_the_guard_fails(job: RunningJob) -> None:
    for says in ({}, {"apply.execution": "ex_1"}, {**SAYS, "apply.status": "cancelled"}):
        if says:
            await job.worker.client.hset(job.guard.key, mapping=dict(says))
        assert await job.add() is Answer.GONE
    with pytest.raises(AttemptLost):
        await job.add(token="other")
    assert await snapshot(job.worker) == {}
