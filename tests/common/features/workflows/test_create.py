"""CREATE: the id, the record and the first event, all or nothing."""

from __future__ import annotations

import asyncio

import pytest

from common.contracts.workflow.statuses import MOST_UNSENT, WORKFLOW_JOB_ID_PATTERN
from common.errors import CorruptKey
from common.features.workflows.types import WorkflowAnswer
from common.jobs.limits import AdmissionLimits, KeyLimits
from tests.common.features.workflows.kit import (
    ADMISSION,
    DATE,
    FIVE,
    Flow,
    fresh_ids,
    hooked,
    limit_keys,
    new_workflow,
    once,
)

OK, REUSED = WorkflowAnswer.OK, WorkflowAnswer.REUSED


async def test_a_new_job_is_complete(flow: Flow) -> None:
    options = {"first": b'{"limit":3}'}
    new = new_workflow(metadata=b'{"a":[]}', tenant="acme", tail="aa", options=options)
    made = await flow.store.create(new, once(), fresh_ids(), ADMISSION)
    assert made == (OK, {"job_id": f"wf_{DATE}_001"}, False, 0, 0, b"")
    job_id = made.facts["job_id"]
    record = await flow.record(job_id)
    assert record["status"] == "queued"
    assert record["current_step"] == "first"
    assert record["draft_state"] == "clean"
    assert record["workflow"] == FIVE.name
    assert record["definition"].encode() == FIVE.to_json()
    assert record["metadata"] == '{"a":[]}'
    assert (record["tenant"], record["tail"]) == ("acme", "aa")
    assert record["started_ms"] == record["updated_ms"]
    assert await flow.statuses(job_id) == ["not_started"] * 5
    assert (await flow.step(job_id, "first"))["options"] == '{"limit":3}'
    assert await flow.events(job_id) == [("job.created", "", {"metadata": {"a": []}})]
    assert await flow.outbox(job_id) == []
    assert await flow.queued() == []
    for index in (flow.keys.index(), flow.keys.index("acme")):
        assert await flow.client.zrange(index, 0, -1) == [job_id.encode()]
    assert await flow.without_ttl() == []


async def test_an_auto_advance_job_starts_at_once(flow: Flow) -> None:
    ids = fresh_ids()
    new = new_workflow(auto_advance=True, webhook=hooked(), tenant="acme")
    made = await flow.store.create(new, once(), ids, ADMISSION)
    job_id = made.facts["job_id"]
    assert made.facts["started"] == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job,
    }  # fmt: skip
    assert (await flow.record(job_id))["status"] == "running"
    assert await flow.types(job_id) == ["job.created", "step.started"]
    assert [entry["status"] for entry in await flow.outbox(job_id)] == ["queued", "running"]
    assert [core_id for core_id, _ in await flow.queued()] == [ids.core_job]
    assert await flow.running() == {job_id: f"first {ids.execution}"}
    assert await flow.without_ttl() == []


async def test_the_webhook_gets_the_events_it_subscribed_to(flow: Flow) -> None:
    job_id = await flow.create(webhook=hooked("job.created"))
    await flow.run(job_id, "first")
    [entry] = await flow.outbox(job_id)
    assert entry["type"] == "job.created"
    assert (entry["seq"], entry["data"]) == (1, '{"metadata":{}}')
    assert (entry["status"], entry["current_step"]) == ("queued", "first")
    assert await flow.client.zrange(flow.keys.deliveries, 0, -1) == [job_id.encode()]


async def test_log_events_are_dropped_for_an_unreachable_webhook(flow: Flow) -> None:
    job_id = await flow.create(webhook=hooked("job.created", "step.started", "step.progress"))
    running = await flow.start(job_id, "first")
    await flow.store.progress(running, 1, 9)
    assert len(await flow.outbox(job_id)) == 3
    first = await flow.client.lindex(flow.keys.outbox(job_id), 0)
    await flow.client.rpush(flow.keys.outbox(job_id), *[first] * (MOST_UNSENT - 3))
    await flow.store.progress(running, 2, 9)
    assert await flow.client.llen(flow.keys.outbox(job_id)) == MOST_UNSENT
    assert (await flow.types(job_id))[-1] == "step.progress"
    await flow.complete(running)
    await flow.start(job_id, "second")
    assert (await flow.outbox(job_id))[-1]["type"] == "step.started"
    assert await flow.client.llen(flow.keys.outbox(job_id)) == MOST_UNSENT + 1


async def test_a_waiting_retry_is_not_made_due_earlier(flow: Flow) -> None:
    job_id = await flow.create(webhook=hooked())
    await flow.client.zadd(flow.keys.deliveries, {job_id: 9e12})
    await flow.start(job_id, "first")
    assert await flow.client.zscore(flow.keys.deliveries, job_id) == 9e12


async def test_ids_of_concurrent_requests_are_consecutive(flow: Flow) -> None:
    ids = await asyncio.gather(*(flow.create() for _ in range(200)))
    assert sorted(ids) == [f"wf_{DATE}_{number:03d}" for number in range(1, 201)]


async def test_ids_grow_past_three_digits_and_restart_each_day(flow: Flow) -> None:
    await flow.client.set(flow.keys.sequence(DATE), 999)
    job_id = await flow.create()
    assert job_id == f"wf_{DATE}_1000"
    assert WORKFLOW_JOB_ID_PATTERN.match(job_id)
    assert await flow.create(date="20260215") == "wf_20260215_001"


async def test_a_lost_counter_does_not_reuse_an_id(flow: Flow) -> None:
    jobs = [await flow.create() for _ in range(3)]
    await flow.client.delete(flow.keys.sequence(DATE))
    assert await flow.create() == f"wf_{DATE}_004"
    await flow.client.delete(flow.keys.sequence(DATE), flow.keys.job(jobs[1]))
    # The second id is free again; leftovers of the deleted job are removed.
    assert await flow.create() == jobs[1]
    assert await flow.types(jobs[1]) == ["job.created"]


async def test_concurrent_requests_with_one_key_create_one_job(flow: Flow) -> None:
    same = once("k")
    made = await asyncio.gather(
        *(flow.store.create(new_workflow(), same, fresh_ids(), ADMISSION) for _ in range(20))
    )
    assert {outcome.facts["job_id"] for outcome in made} == {f"wf_{DATE}_001"}
    assert sorted(outcome.replayed for outcome in made) == [False] + [True] * 19
    assert await flow.create() == f"wf_{DATE}_002"  # no gap


async def test_a_key_with_another_request_is_refused(flow: Flow) -> None:
    await flow.store.create(new_workflow(), once("k"), fresh_ids(), ADMISSION)
    other = await flow.store.create(new_workflow(), once("k", "other"), fresh_ids(), ADMISSION)
    assert other == (REUSED, {}, False, 0, 0, b"")


async def test_a_full_queue_refuses_only_jobs_that_start_at_once(flow: Flow) -> None:
    none = AdmissionLimits("workers", 0, 600)
    before = await flow.snapshot()
    full = await flow.store.create(new_workflow(auto_advance=True), once("k"), fresh_ids(), none)
    assert (full.answer, full.facts) == (WorkflowAnswer.FULL, {"backlog": 0})
    assert await flow.snapshot() == before
    made = await flow.store.create(new_workflow(), once(), fresh_ids(), none)
    assert made.answer is OK
    # A refusal is not stored.
    again = await flow.store.create(
        new_workflow(auto_advance=True), once("k"), fresh_ids(), ADMISSION
    )
    assert (again.answer, again.replayed) == (OK, False)


async def test_a_rate_limit_is_enforced(flow: Flow) -> None:
    slow = ADMISSION._replace(limits=KeyLimits(*limit_keys(flow), 60_000_000, 2, 0))
    answers = [await flow.store.create(new_workflow(), once(), fresh_ids(), slow) for _ in range(3)]
    assert [outcome.answer for outcome in answers] == [OK, OK, WorkflowAnswer.RATE]
    assert 0 < answers[2].facts["wait_ms"] <= 60_000


async def test_a_quota_counts_started_jobs(flow: Flow) -> None:
    limits = KeyLimits(*limit_keys(flow), 0, 0, 1)
    limited = ADMISSION._replace(limits=limits)
    ids = fresh_ids()
    new = new_workflow(auto_advance=True)
    assert (await flow.store.create(new, once(), ids, limited)).answer is OK
    assert await flow.client.zrange(limits.active_key, 0, -1) == [ids.core_job.encode()]
    refused = await flow.store.create(new, once(), fresh_ids(), limited)
    assert (refused.answer, refused.facts) == (WorkflowAnswer.QUOTA, {"active": 1})
    assert (await flow.store.create(new_workflow(), once(), fresh_ids(), limited)).answer is OK


@pytest.mark.parametrize("spoilt", ["index", "own_index", "sequence", "running", "queue", "answer"])
async def test_a_key_of_the_wrong_type_leaves_nothing_behind(flow: Flow, spoilt: str) -> None:
    same = once("k")
    key = {
        "index": flow.keys.index(),
        "own_index": flow.keys.index("acme"),
        "sequence": flow.keys.sequence(DATE),
        "running": flow.keys.running,
        "queue": flow.jobs.queue,
        "answer": same.key,
    }[spoilt]
    await flow.client.sadd(key, "x")
    new = new_workflow(tenant="acme", auto_advance=True)
    with pytest.raises(CorruptKey):
        await flow.store.create(new, same, fresh_ids(), ADMISSION)
    assert await flow.client.keys("*") == [key.encode()]
    await flow.client.delete(key)
    assert (await flow.store.create(new, same, fresh_ids(), ADMISSION)).answer is OK


async def test_expired_jobs_are_removed_from_the_index(flow: Flow) -> None:
    gone = await flow.create()
    await flow.client.delete(flow.keys.job(gone))
    kept = [await flow.create() for _ in range(3)]
    found = await flow.client.zrange(flow.keys.index(), 0, -1)
    assert sorted(name.decode() for name in found) == sorted(kept)
