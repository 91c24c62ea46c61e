"""CANCEL: ends a job for good."""

from __future__ import annotations

from common.features.workflows.types import WorkflowAnswer
from tests.common.features.workflows.kit import Flow, once, proposals

OK, ALREADY, LOST = WorkflowAnswer.OK, WorkflowAnswer.ALREADY, WorkflowAnswer.LOST
REFUSED, MISSING = WorkflowAnswer.REFUSED, WorkflowAnswer.MISSING


async def test_a_new_job_can_be_cancelled(flow: Flow) -> None:
    job_id = await flow.create()
    outcome = await flow.store.cancel(job_id, once())
    assert (outcome.answer, outcome.facts) == (OK, {"core_jobs": []})
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("cancelled", "clean")
    assert record["completed_ms"] != ""
    kind, _, data = (await flow.events(job_id))[-1]
    assert (kind, list(data)) == ("job.cancelled", ["counts"])


async def test_a_running_step_is_cancelled_with_the_job(flow: Flow) -> None:
    job_id = await flow.create()
    running = await flow.start(job_id, "second")
    [(core_job, _)] = await flow.queued()
    outcome = await flow.store.cancel(job_id, once(), "no longer wanted")
    assert outcome.facts == {"core_jobs": [core_job]}
    assert (await flow.statuses(job_id))[:2] == ["cancelled", "not_started"]
    record = await flow.record(job_id)
    assert (record["draft_state"], record["target"]) == ("dirty", "")
    assert await flow.running() == {}
    assert (await flow.events(job_id))[-1][2]["reason"] == "no longer wanted"
    before = await flow.snapshot()
    assert (await flow.complete(running)).answer is ALREADY
    assert (await flow.store.progress(running, 1, 2)).answer is ALREADY
    assert await flow.snapshot() == before


async def test_a_repeated_cancel_returns_core_jobs_that_may_run(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.start(job_id, "first")
    first = await flow.store.cancel(job_id, once())
    before = await flow.snapshot()
    again = await flow.store.cancel(job_id, once())
    assert (again.answer, again.facts) == (ALREADY, first.facts)
    assert await flow.snapshot() == before


async def test_a_waiting_review_is_cancelled(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposals(1))
    await flow.execute(job_id, "review")
    assert await flow.client.zcard(flow.keys.reviews) == 1
    outcome = await flow.store.cancel(job_id, once())
    assert outcome.facts == {"core_jobs": []}
    assert (await flow.statuses(job_id))[2] == "cancelled"
    assert await flow.client.zcard(flow.keys.reviews) == 0
    assert (await flow.record(job_id))["draft_state"] == "dirty"


async def test_cancelling_an_unfinished_save_leaves_the_draft_dirty(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second")
    await flow.start(job_id, "apply")
    await flow.store.cancel(job_id, once())
    assert (await flow.record(job_id))["draft_state"] == "dirty"


async def test_an_ended_job_cannot_be_cancelled(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.store.fail(await flow.start(job_id, "first"), b"[]")
    refused = await flow.store.cancel(job_id, once())
    assert (refused.answer, refused.facts) == (REFUSED, {"code": "job_terminal"})
    assert (await flow.store.cancel("wf_20260214_999", once())).answer is MISSING
