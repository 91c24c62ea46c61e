"""Idempotency: a repeated call has no further effect and gets the same answer."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.jobs import JobKeys
from common.errors import StoreUnavailable
from common.features.workflows.scripts import WORKFLOW_SCRIPT
from common.features.workflows.store import WorkflowStore
from common.features.workflows.types import ExecuteCommand, NewItem, StepResult, WorkflowAnswer
from common.redis.batching import ScriptBatcher
from common.redis.pipelined import PipelinedConnection
from tests.common.features.workflows.kit import (
    ADMISSION,
    DATE,
    Flow,
    fresh_ids,
    hooked,
    new_workflow,
    once,
    proposals,
)
from tests.common.kit import Proxy
from tests.conftest import eventually
from tests.support.backends import Backend

OK, ALREADY = WorkflowAnswer.OK, WorkflowAnswer.ALREADY


async def run_job(flow: Flow) -> str:
    """Run a job through all kinds of operations."""
    job_id = await flow.create(webhook=hooked())
    first = await flow.start(job_id, "first")
    await flow.store.progress(first, 1, 4)
    await flow.store.put(first, "draft", b"x")
    await flow.store.split(first, [fresh_ids().core_job], 600)
    for part in range(2):
        await flow.store.finish_part(first, part, b"found")
    await flow.complete(first, StepResult("one", [NewItem(b"{}")]))
    await flow.store.fail(await flow.start(job_id, "second"), b'[{"code":"x"}]')
    await flow.complete(await flow.start(job_id, "second"), proposals(2))
    await flow.execute(job_id, "apply")
    await flow.start(job_id, "second")
    await flow.store.cancel(job_id, once())
    return job_id


async def test_lost_replies_do_not_change_the_result(doubting: Flow) -> None:
    job_id = await run_job(doubting)
    assert job_id == f"wf_{DATE}_001"
    assert await doubting.types(job_id) == [
        "job.created", "step.started", "step.progress", "step.progress", "step.progress",
        "step.completed", "step.started", "step.failed", "job.failed", "step.started",
        "step.completed", "step.started", "job.waiting_input", "step.reset", "step.started",
        "job.cancelled",
    ]  # fmt: skip
    assert await doubting.ids(job_id) == ["f_001"]
    assert len(await doubting.queued()) == 5
    assert (await doubting.step(job_id, "second"))["attempt"] == "3"
    outbox = [entry["type"] for entry in await doubting.outbox(job_id)]
    delivered = ["job.created", *["step.started", "step.completed", "step.started"]]
    assert outbox == [*delivered, "step.started", "step.completed", "step.started", "step.started"]
    assert await doubting.without_ttl() == []


@pytest.mark.one_server
async def test_a_reply_lost_on_the_connection(real_backend: Backend, keys: JobKeys) -> None:
    assert real_backend.url is not None
    flow = Flow(real_backend, keys)
    job_id = await flow.create()
    async with Proxy(real_backend.url) as proxy:
        wire = PipelinedConnection(proxy.url)
        batcher = ScriptBatcher(wire, keys, WORKFLOW_SCRIPT, retry_for_s=10.0)
        store = WorkflowStore(flow.client, keys, batcher)
        await store.store_answer(once(), 200, b"")  # the script is loaded, the connection open
        proxy.lose_replies = 1
        ids = fresh_ids()
        wanted, waiting = ExecuteCommand(job_id, "first"), once("k", claim_ms=9000)
        outcome = await store.execute(wanted, waiting, ids, ADMISSION)
        assert (outcome.answer, outcome.replayed, outcome.claimed_ms_left) == (OK, False, 0)
        assert outcome.facts["execution_id"] == ids.execution
        assert len(await flow.queued()) == 1
        await batcher.close()
        await wire.aclose()
    await flow.close()


async def test_the_same_key_again_is_a_repetition(flow: Flow) -> None:
    job_id = await flow.create()
    waiting = once("k", claim_ms=5000)
    first = await flow.store.execute(
        ExecuteCommand(job_id, "first"), waiting, fresh_ids(), ADMISSION
    )
    again = await flow.store.execute(
        ExecuteCommand(job_id, "first"), waiting, fresh_ids(), ADMISSION
    )
    assert (again.answer, again.facts, again.replayed) == (OK, first.facts, True)
    assert 0 < again.claimed_ms_left <= 5000
    assert (again.status_code, again.body) == (0, b"")
    await flow.store.store_answer(waiting, 202, b'{"success":true}')
    later = await flow.store.execute(
        ExecuteCommand(job_id, "first"), waiting, fresh_ids(), ADMISSION
    )
    assert (later.replayed, later.claimed_ms_left) == (True, 0)
    assert (later.status_code, later.body) == (202, b'{"success":true}')
    assert later.facts == first.facts
    assert 0 < await flow.client.ttl(waiting.key) <= 600


async def test_the_answer_of_another_request_is_not_overwritten(flow: Flow) -> None:
    await flow.store.store_answer(once("k"), 200, b"first")
    await flow.store.store_answer(once("k", "other"), 200, b"second")
    found = await flow.store.cancel("wf_20260214_001", once("k"))
    assert (found.body, found.replayed) == (b"first", True)
    other = await flow.store.cancel("wf_20260214_001", once("k", "other"))
    assert other.answer is WorkflowAnswer.REUSED


async def test_a_refused_request_can_be_repeated(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "first")
    same = once("k")
    wanted = ExecuteCommand(job_id, "second")
    refused = await flow.store.execute(wanted, same, fresh_ids(), ADMISSION)
    assert refused.facts["code"] == "step_in_progress"
    await flow.complete(running)
    started = await flow.store.execute(wanted, same, fresh_ids(), ADMISSION)
    assert (started.answer, started.replayed) == (OK, False)


async def test_a_key_can_be_reused_after_its_ttl(flow: Flow) -> None:
    same = once("k")
    first = await flow.store.create(new_workflow(), same, fresh_ids(), ADMISSION)
    await flow.client.delete(same.key)
    second = await flow.store.create(new_workflow(), same, fresh_ids(), ADMISSION)
    assert first.facts != second.facts


async def test_without_memory_work_ends_but_none_starts(real_flow: Flow) -> None:
    flow = real_flow
    job_id, other = await flow.create(), await flow.create()
    running = await flow.start(job_id, "first")
    done = await flow.create()
    await flow.run(done, "first", proposals(1))
    batcher = ScriptBatcher(flow.backend.wire(), flow.jobs, WORKFLOW_SCRIPT, retry_for_s=0.3)
    impatient = WorkflowStore(flow.client, flow.jobs, batcher)
    await flow.client.config_set("maxmemory", "1")
    try:
        before = await flow.snapshot()
        with pytest.raises(StoreUnavailable):
            await impatient.create(new_workflow(), once(), fresh_ids(), ADMISSION)
        with pytest.raises(StoreUnavailable):
            await impatient.execute(ExecuteCommand(other, "first"), once(), fresh_ids(), ADMISSION)
        with pytest.raises(StoreUnavailable):
            await impatient.execute(ExecuteCommand(done, "first"), once(), fresh_ids(), ADMISSION)
        assert await flow.snapshot() == before
        assert (await impatient.progress(running, 1, 2)).answer is OK
        assert (await impatient.complete(running, proposals(3), fresh_ids(), 600)).answer is OK
        assert (await impatient.cancel(job_id, once())).answer is OK
    finally:
        await flow.client.config_set("maxmemory", "0")
        await batcher.close()


async def test_hints_and_wakes_are_published(real_flow: Flow) -> None:
    flow = real_flow
    heard: list[bytes] = []
    pubsub = flow.client.pubsub()
    await pubsub.subscribe(flow.jobs.hints, flow.keys.wake)

    async def listen() -> None:
        async for message in pubsub.listen():
            if message["type"] == "message":
                heard.append(message["channel"] + b" " + message["data"])

    listening = asyncio.create_task(listen())
    job_id = await flow.create(webhook=hooked())
    expected = {f"{flow.jobs.hints} {job_id}".encode(), f"{flow.keys.wake} {job_id}".encode()}
    await eventually(lambda: set(heard) == expected)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await pubsub.aclose()
