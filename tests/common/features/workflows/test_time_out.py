"""EXPIRE_REVIEW: a review that was not finished in time ends as its options say."""

from __future__ import annotations

import pytest

from common.contracts.workflow.statuses import Action, OnTimeout
from common.errors import CorruptKey
from common.features.workflows.definitions import ReviewOptions
from common.features.workflows.types import WorkflowAnswer, WorkflowOutcome
from tests.common.features.workflows.item_kit import (
    MISSING,
    OK,
    counters,
    decide,
    in_review,
    in_review_by_itself,
    payload,
    stack,
    undo,
)
from tests.common.features.workflows.kit import ADMISSION, Flow, fresh_ids

ALREADY = WorkflowAnswer.ALREADY


def options(on_timeout: OnTimeout) -> ReviewOptions:
    return ReviewOptions(timeout_s=60, on_timeout=on_timeout)


async def run_out(flow: Flow, job_id: str) -> None:
    """Let the review's time pass."""
    await flow.client.zadd(flow.keys.reviews, {job_id: 1})


async def time_out(flow: Flow, job_id: str) -> WorkflowOutcome:
    return await flow.store.expire_review(job_id, fresh_ids(), ADMISSION)


async def test_only_expired_reviews_are_found_and_ended(flow: Flow) -> None:
    job_id = await in_review(flow, review=options(OnTimeout.FAIL))
    other = await in_review(flow, review=options(OnTimeout.FAIL))
    assert await flow.store.expired_reviews() == []
    snapshot = await flow.snapshot()
    assert (await time_out(flow, job_id)).answer is ALREADY
    assert await flow.snapshot() == snapshot
    await run_out(flow, job_id)
    assert await flow.store.expired_reviews() == [job_id]
    await run_out(flow, other)
    assert await flow.store.expired_reviews(limit=1) == [job_id]


async def test_an_expired_review_fails_the_job_and_can_be_resumed(flow: Flow) -> None:
    job_id = await in_review(flow, review=options(OnTimeout.FAIL))
    await run_out(flow, job_id)
    assert (await time_out(flow, job_id)).answer is OK
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("failed", "failed")
    assert record["completed_ms"] != ""
    assert (await flow.types(job_id))[-2:] == ["step.failed", "job.failed"]
    [error] = (await flow.events(job_id))[-2][2]["errors"]
    assert error["code"] == "review_timeout"
    assert "3 items" in error["message"]
    assert await flow.client.zcard(flow.keys.reviews) == 0
    assert (await time_out(flow, job_id)).answer is ALREADY
    # Later a decision is made after all.
    outcome = await decide(flow, job_id, action=Action.APPROVE, reviewing=True)
    assert outcome.facts["completed"]
    record = await flow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("running", "dirty")
    assert record["completed_ms"] == ""


@pytest.mark.parametrize(
    ("on_timeout", "counts"),
    [(OnTimeout.APPROVE, (0, 2, 0, 0, 2)), (OnTimeout.REJECT, (0, 0, 2, 0, 0))],
)
async def test_undecided_items_are_decided_and_the_job_goes_on(
    flow: Flow, on_timeout: OnTimeout, counts: tuple[int, ...]
) -> None:
    job_id = await in_review_by_itself(flow, options(on_timeout))
    await run_out(flow, job_id)
    outcome = await time_out(flow, job_id)
    assert outcome.facts["completed"]
    assert outcome.facts["started"]["step"] == "apply"
    assert await counters(flow, job_id) == counts
    record = await flow.record(job_id)
    assert record["last_operation"] == f"{on_timeout.value}_filtered"
    audit = await payload(flow, job_id, "r_001")
    assert (audit["who"], audit["proposals"]) == ("timeout", ["p_001", "p_002"])
    assert await stack(flow, job_id) == [audit["undo_token"]]
    queued = len(await flow.queued())
    assert (await time_out(flow, job_id)).answer is ALREADY
    assert len(await flow.queued()) == queued


async def test_decisions_of_an_expired_review_can_be_undone(flow: Flow) -> None:
    job_id = await in_review(flow, review=options(OnTimeout.REJECT))
    await run_out(flow, job_id)
    assert (await time_out(flow, job_id)).facts == {"completed": True}
    [token] = await stack(flow, job_id)
    assert (await undo(flow, job_id, token)).answer is OK
    assert (await flow.record(job_id))["status"] == "waiting_input"
    assert await flow.store.expired_reviews() == []  # it has its full time again


async def test_an_expired_review_can_cancel_the_job(flow: Flow) -> None:
    job_id = await in_review(flow, review=options(OnTimeout.CANCEL))
    await run_out(flow, job_id)
    assert (await time_out(flow, job_id)).answer is OK
    assert (await flow.record(job_id))["status"] == "cancelled"
    assert (await flow.statuses(job_id))[2] == "cancelled"
    kind, _, data = (await flow.events(job_id))[-1]
    assert (kind, data["reason"]) == ("job.cancelled", "review_timeout")


async def test_an_expired_review_without_pending_items_completes(flow: Flow) -> None:
    job_id = await in_review(flow, 0.5, review=options(OnTimeout.FAIL))
    await flow.client.hset(flow.keys.job(job_id), "proposed", 0)  # changed by a third party
    await run_out(flow, job_id)
    assert (await time_out(flow, job_id)).facts["completed"]
    assert (await flow.record(job_id))["status"] == "running"
    assert (await flow.statuses(job_id))[2] == "complete"


async def test_a_review_without_a_timeout_is_checked_again_later(flow: Flow) -> None:
    job_id = await in_review(flow)
    await run_out(flow, job_id)
    assert await flow.store.expired_reviews() == [job_id]
    before = await flow.events(job_id)
    assert (await time_out(flow, job_id)).answer is ALREADY
    assert await flow.store.expired_reviews() == []
    assert await flow.client.zcard(flow.keys.reviews) == 1
    assert await flow.events(job_id) == before


async def test_jobs_that_are_gone_or_not_waiting_leave_the_list(flow: Flow) -> None:
    job_id = await flow.create()
    await run_out(flow, job_id)
    await run_out(flow, "wf_20260214_999")
    assert (await time_out(flow, "wf_20260214_999")).answer is MISSING
    assert (await time_out(flow, job_id)).answer is ALREADY
    assert await flow.client.zcard(flow.keys.reviews) == 0


async def test_a_queue_of_the_wrong_type_fails_before_any_write(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow, options(OnTimeout.APPROVE))
    await run_out(flow, job_id)
    await flow.client.delete(flow.jobs.queue)
    await flow.client.set(flow.jobs.queue, "no queue")
    snapshot = await flow.snapshot()
    with pytest.raises(CorruptKey):
        await time_out(flow, job_id)
    with pytest.raises(CorruptKey):
        await decide(flow, job_id, action=Action.APPROVE)
    assert await flow.snapshot() == snapshot
