"""Documents added only if their id is free and while a guard holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.contracts.queue import Answer
from common.contracts.workflow.keys import WorkflowKeys
from tests.worker.features.rag.kit import RagMaker, RagRig
from tests.worker.features.rag.test_fence import DOCUMENT, RECORD, fence_of, snapshot
from worker.errors import AttemptLost
from worker.features.rag.errors import NamespaceFull
from worker.features.rag.store import NewDocument, RagStore, WriteGuard

SAYS = {"apply.execution": "ex_1", "apply.status": "running"}


def guard_of(worker: RagRig) -> WriteGuard:
    return WriteGuard(WorkflowKeys(worker.keys.tag).steps("x"), SAYS)


def named(document_id: str, revision: str = "r1") -> NewDocument:
    return replace(DOCUMENT, record=replace(RECORD, id=document_id, revision=revision))


async def test_one_job_adds_many_each_once(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="tool")
    store, fence = RagStore(worker.client, 3), fence_of(worker, lease)
    guard = guard_of(worker)
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


async def test_nothing_is_added_once_the_guard_fails(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="tool")
    store, fence = RagStore(worker.client, 3), fence_of(worker, lease)
    guard = guard_of(worker)
    for says in ({}, {"apply.execution": "ex_1"}, {**SAYS, "apply.status": "cancelled"}):
        if says:
            await worker.client.hset(guard.key, mapping=dict(says))
        answer = await store.add(fence, lease.job_id, worker.ns, DOCUMENT, guard)
        assert answer is Answer.GONE
    with pytest.raises(AttemptLost):
        await store.add(fence._replace(token="other"), lease.job_id, worker.ns, DOCUMENT, guard)
    assert await snapshot(worker) == {}


async def test_an_invalid_record_counts_as_another_document(rag: RagMaker) -> None:
    worker = await rag(opened=False)
    lease = await worker.running(task="tool")
    store, fence = RagStore(worker.client, 3), fence_of(worker, lease)
    guard = guard_of(worker)
    await worker.client.hset(guard.key, mapping=dict(SAYS))
    for raw in (b"{", b"7", b"[]"):
        await worker.client.hset(worker.ns.documents, "doc", raw)
        answer = await store.add(fence, lease.job_id, worker.ns, DOCUMENT, guard)
        assert answer is Answer.CONFLICT
