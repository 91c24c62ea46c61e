"""CREATE: the id, the record and the first event, all or nothing."""

from __future__ import annotations

import asyncio

from common.contracts.workflow.statuses import MOST_UNSENT, WORKFLOW_JOB_ID_PATTERN
from common.features.workflows.types import WorkflowAnswer
from common.jobs.limits import AdmissionLimits, KeyLimits
from tests.support.store.workflows import (
    ADMISSION,
    DATE,
    FIVE,
    FULL,
    OK,
    REUSED,
    WorkflowHarness,
    fresh_ids,
    hooked,
    limit_keys,
    new_workflow,
    once,
)


async def test_a_new_job_is_complete(workflow: WorkflowHarness) -> None:
    options = {"first": b'{"limit":3}'}
    new = new_workflow(metadata=b'{"a":[]}', tenant="acme", tail="aa", options=options)
    made = await workflow.store.create(new, once(), fresh_ids(), ADMISSION)
    assert made == (OK, {"job_id": f"wf_{DATE}_001"}, False, 0, 0, b"")
    job_id = made.facts["job_id"]
    record = await workflow.record(job_id)
    assert record["status"] == "queued"
    assert record["current_step"] == "first"
    assert record["draft_state"] == "clean"
    assert record["workflow"] == FIVE.name
    assert record["definition"].encode() == FIVE.to_json()
    assert record["metadata"] == '{"a":[]}'
    assert (record["tenant"], record["tail"]) == ("acme", "aa")
    assert record["started_ms"] == record["updated_ms"]
    assert await workflow.statuses(job_id) == ["not_started"] * 5
    assert (await workflow.step(job_id, "first"))["options"] == '{"limit":3}'
    assert await workflow.events(job_id) == [("job.created", "", {"metadata": {"a": []}})]
    assert await workflow.outbox(job_id) == []
    assert await workflow.queued() == []
    for index in (workflow.keys.index(), workflow.keys.index("acme")):
        assert await workflow.client.zrange(index, 0, -1) == [job_id.encode()]
    assert await workflow.without_ttl() == []


async def test_an_auto_advance_job_starts_at_once(workflow: WorkflowHarness) -> None:
    ids = fresh_ids()
    new = new_workflow(auto_advance=True, webhook=hooked(), tenant="acme")
    made = await workflow.store.create(new, once(), ids, ADMISSION)
    job_id = made.facts["job_id"]
    assert made.facts["started"] == {
        "step": "first", "execution_id": ids.execution, "core_job_id": ids.core_job,
    }  # fmt: skip
    assert (await workflow.record(job_id))["status"] == "running"
    assert await workflow.types(job_id) == ["job.created", "step.started"]
    assert [entry["status"] for entry in await workflow.outbox(job_id)] == ["queued", "running"]
    assert [core_id for core_id, _ in await workflow.queued()] == [ids.core_job]
    assert await workflow.running() == {job_id: f"first {ids.execution}"}
    assert await workflow.without_ttl() == []


async def test_the_webhook_gets_the_events_it_subscribed_to(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(webhook=hooked("job.created"))
    await workflow.run(job_id, "first")
    [entry] = await workflow.outbox(job_id)
    assert entry["type"] == "job.created"
    assert (entry["seq"], entry["data"]) == (1, '{"metadata":{}}')
    assert (entry["status"], entry["current_step"]) == ("queued", "first")
    assert await workflow.client.zrange(workflow.keys.deliveries, 0, -1) == [job_id.encode()]
    job_id = await workflow.create(webhook=hooked())
    await workflow.client.zadd(workflow.keys.deliveries, {job_id: 9e12})  # a waiting retry
    await workflow.start(job_id, "first")
    assert await workflow.client.zscore(workflow.keys.deliveries, job_id) == 9e12


async def test_log_events_are_dropped_for_an_unreachable_webhook(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(webhook=hooked("job.created", "step.started", "step.progress"))
    running = await workflow.start(job_id, "first")
    await workflow.store.progress(running, 1, 9)
    assert len(await workflow.outbox(job_id)) == 3
    first = await workflow.client.lindex(workflow.keys.outbox(job_id), 0)
    await workflow.client.rpush(workflow.keys.outbox(job_id), *[first] * (MOST_UNSENT - 3))
    await workflow.store.progress(running, 2, 9)
    assert await workflow.client.llen(workflow.keys.outbox(job_id)) == MOST_UNSENT
    assert (await workflow.types(job_id))[-1] == "step.progress"
    await workflow.complete(running)
    await workflow.start(job_id, "second")
    assert (await workflow.outbox(job_id))[-1]["type"] == "step.started"
    assert await workflow.client.llen(workflow.keys.outbox(job_id)) == MOST_UNSENT + 1


async def test_ids_are_consecutive_and_restart_each_day(workflow: WorkflowHarness) -> None:
    ids = await asyncio.gather(*(workflow.create() for _ in range(80)))
    assert sorted(ids) == [f"wf_{DATE}_{number:03d}" for number in range(1, 81)]
    await workflow.client.set(workflow.keys.sequence(DATE), 999)
    job_id = await workflow.create()
    assert job_id == f"wf_{DATE}_1000"
    assert WORKFLOW_JOB_ID_PATTERN.match(job_id)
    assert await workflow.create(date="20260215") == "wf_20260215_001"


async def test_a_lost_counter_does_not_reuse_an_id(workflow: WorkflowHarness) -> None:
    jobs = [await workflow.create() for _ in range(3)]
    await workflow.client.delete(workflow.keys.sequence(DATE))
    assert await workflow.create() == f"wf_{DATE}_004"
    await workflow.client.delete(workflow.keys.sequence(DATE), workflow.keys.job(jobs[1]))
    # The second id is free again; leftovers of the deleted job are removed.
    assert await workflow.create() == jobs[1]
    assert await workflow.types(jobs[1]) == ["job.created"]


async def test_concurrent_requests_with_one_key_create_one_job(workflow: WorkflowHarness) -> None:
    made = await asyncio.gather(*(workflow.make(once("k")) for _ in range(20)))
    assert {outcome.facts["job_id"] for outcome in made} == {f"wf_{DATE}_001"}
    assert sorted(outcome.replayed for outcome in made) == [False] + [True] * 19
    assert await workflow.create() == f"wf_{DATE}_002"  # no gap
    assert await workflow.make(once("k", "other")) == (REUSED, {}, False, 0, 0, b"")


async def test_a_full_queue_refuses_only_jobs_that_start_at_once(workflow: WorkflowHarness) -> None:
    none = AdmissionLimits("workers", 0, 600)
    async with workflow.unchanged():
        full = await workflow.make(once("k"), admission=none, auto_advance=True)
        assert (full.answer, full.facts) == (FULL, {"backlog": 0})
    made = await workflow.make(admission=none)
    assert made.answer is OK
    # A refusal is not stored.
    again = await workflow.make(once("k"), auto_advance=True)
    assert (again.answer, again.replayed) == (OK, False)


async def test_rate_and_quota_of_the_caller_are_enforced(workflow: WorkflowHarness) -> None:
    slow = ADMISSION._replace(limits=KeyLimits(*limit_keys(workflow), 60_000_000, 2, 0))
    answers = [await workflow.make(admission=slow) for _ in range(3)]
    assert [outcome.answer for outcome in answers] == [OK, OK, WorkflowAnswer.RATE]
    assert 0 < answers[2].facts["wait_ms"] <= 60_000
    limits = KeyLimits(*limit_keys(workflow), 0, 0, 1)
    limited = ADMISSION._replace(limits=limits)
    ids = fresh_ids()
    new = new_workflow(auto_advance=True)
    assert (await workflow.store.create(new, once(), ids, limited)).answer is OK
    assert await workflow.client.zrange(limits.active_key, 0, -1) == [ids.core_job.encode()]
    refused = await workflow.store.create(new, once(), fresh_ids(), limited)
    assert (refused.answer, refused.facts) == (WorkflowAnswer.QUOTA, {"active": 1})
    assert (await workflow.make(admission=limited)).answer is OK


async def test_a_key_of_the_wrong_type_leaves_nothing_behind(workflow: WorkflowHarness) -> None:
    names, same = workflow.keys, once("k")
    keys = [names.index(), names.index("acme"), names.sequence(DATE), names.running]
    made = await workflow.needs(
        [*keys, workflow.jobs.queue, same.key],
        lambda: workflow.make(same, tenant="acme", auto_advance=True),
    )
    assert made.answer is OK


async def test_expired_jobs_are_removed_from_the_index(workflow: WorkflowHarness) -> None:
    gone = await workflow.create()
    await workflow.client.delete(workflow.keys.job(gone))
    kept = [await workflow.create() for _ in range(3)]
    found = await workflow.client.zrange(workflow.keys.index(), 0, -1)
    assert sorted(name.decode() for name in found) == sorted(kept)
