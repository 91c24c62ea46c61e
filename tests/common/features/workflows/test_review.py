"""Reviews: how one begins, waits, approves automatically, expires and ends."""

from __future__ import annotations

import time

import pytest

from sluice.common.contracts.workflow.statuses import Action, OnTimeout, ReviewMode, StepKind
from sluice.common.errors import CorruptKey
from sluice.common.features.workflows.definitions import (
    ReviewOptions,
    StepDefinition,
    WorkflowDefinition,
)
from sluice.common.features.workflows.types import WorkflowOutcome
from tests.support.store.workflows import (
    ADMISSION,
    ALREADY,
    MISSING,
    NOTHING,
    OK,
    WorkflowHarness,
    approve,
    fresh_ids,
    hooked,
    proposed,
)

AUTO = ReviewOptions(ReviewMode.AUTO, 0.9)

#: Two steps propose, and two reviews follow; the third step has no review.
TWICE = WorkflowDefinition(
    "twice_v1",
    (
        StepDefinition("one", "o", "idea", 0.2, proposes=True),
        StepDefinition("two", "t", "idea", 0.2, proposes=True),
        StepDefinition("review_one", "r", "review", 0.2, kind=StepKind.REVIEW, reviews="one"),
        StepDefinition("review_two", "w", "review", 0.2, kind=StepKind.REVIEW, reviews="two"),
        StepDefinition("free", "f", "idea", 0.2, proposes=True),
    ),
)


async def test_a_waiting_review_uses_no_worker(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(webhook=hooked("job.waiting_input"))
    await workflow.has(job_id, status="waiting_input", current_step="review")
    waiting = ["complete", "complete", "waiting_input", "not_started", "not_started"]
    assert await workflow.statuses(job_id) == waiting
    assert await workflow.running() == {}
    assert len(await workflow.queued()) == 2
    started, waits = (await workflow.events(job_id))[-2:]
    assert started[:2] == ("step.started", "review")
    assert waits == ("job.waiting_input", "review", {"step": "review", "pending": 3})
    [delivered] = await workflow.outbox(job_id)
    assert (delivered["type"], delivered["status"]) == ("job.waiting_input", "waiting_input")
    await workflow.step_has(job_id, "review", attempt="1", done="0", total="3")
    assert await workflow.without_ttl() == []


async def test_a_repeated_execute_leaves_a_review_waiting(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review_by_itself()
    assert (await workflow.record(job_id))["status"] == "waiting_input"
    assert len(await workflow.queued()) == 2
    before = await workflow.events(job_id)
    entered = await workflow.execute(job_id, "review")
    assert (entered.facts["waiting"], entered.facts["pending"]) == (True, 2)
    assert await workflow.events(job_id) == before
    assert (await workflow.step(job_id, "review"))["attempt"] == "1"


async def test_a_review_without_undecided_items_ends_at_once(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create()
    await workflow.run(job_id, "first")
    await workflow.run(job_id, "second")
    entered = await workflow.execute(job_id, "review")
    assert entered.facts["completed"]
    assert not entered.facts["waiting"]
    assert (await workflow.types(job_id))[-2:] == ["step.started", "step.completed"]
    assert (await workflow.step(job_id, "review"))["summary"] == "Nothing to decide"
    assert await workflow.client.zcard(workflow.keys.reviews) == 0
    # Nor with decided ones, or if all are approved automatically.
    job_id = await workflow.with_proposals()
    decided = await workflow.decide(job_id, action=Action.APPROVE)
    assert (decided.facts["pending"], decided.facts["completed"]) == (0, False)
    assert (await workflow.execute(job_id, "review")).facts["completed"]
    await workflow.has(job_id, status="running")
    job_id = await workflow.with_proposals(0.95, 1.0, review=AUTO)
    entered = await workflow.execute(job_id, "review")
    assert entered.facts["completed"]
    assert not entered.facts["waiting"]
    assert "job.waiting_input" not in await workflow.types(job_id)
    assert await workflow.counters(job_id) == (0, 2, 0, 0, 2)


async def test_confident_items_are_approved_automatically(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(0.95, 0.9, 0.89, review=AUTO)
    assert await workflow.item(job_id, "p_001") == "approved 2 0 0.950000"
    assert await workflow.item(job_id, "p_002") == "approved 2 0 0.900000"
    assert await workflow.item(job_id, "p_003") == "proposed 1 0 0.890000"
    await workflow.has(job_id, status="waiting_input", last_operation="approve_filtered")
    audit = await workflow.payload(job_id, "r_001")
    assert (audit["who"], audit["proposals"]) == ("auto", ["p_001", "p_002"])
    [token] = await workflow.stack(job_id)
    assert audit["undo_token"] == token
    assert (await workflow.undo(job_id, token)).facts["undone"] == ["p_001", "p_002"]
    # A decision of a person is kept.
    assert (await workflow.execute(job_id, "review")).facts["pending"] == 3


async def test_a_review_opened_by_a_decision_approves_the_rest(workflow: WorkflowHarness) -> None:
    job_id = await workflow.with_proposals(0.2, 0.95, review=AUTO)
    assert (await workflow.decide(job_id, [approve("p_001")], reviewing=True)).facts["completed"]
    assert len(await workflow.stack(job_id)) == 2


@pytest.mark.parametrize("timeout_s", [None, 30.5])
async def test_a_review_is_checked_again(
    workflow: WorkflowHarness, timeout_s: float | None
) -> None:
    review = ReviewOptions(timeout_s=timeout_s, on_timeout=OnTimeout.REJECT)
    job_id = await workflow.in_review(review=review)
    score = await workflow.client.zscore(workflow.keys.reviews, job_id)
    expected_ms = (time.time() + (timeout_s or 3600)) * 1000
    assert score == pytest.approx(expected_ms, abs=20_000)
    assert await workflow.client.ttl(workflow.keys.reviews) > 0


async def test_a_review_concerns_the_items_of_its_step(workflow: WorkflowHarness) -> None:
    job_id = await workflow.create(definition=TWICE)
    await workflow.run(job_id, "one", proposed(0.5, 0.5))
    await workflow.run(job_id, "two", proposed(0.5))
    assert (await workflow.execute(job_id, "review_one")).facts["pending"] == 2
    # A step's items can be decided by name before its own review.
    outcome = await workflow.decide(job_id, [approve("t_001")], step="two")
    assert (outcome.facts["applied"], outcome.facts["completed"]) == (["t_001"], False)
    assert (await workflow.decide(job_id, [approve("t_001")])).facts["failed"]
    outcome = await workflow.decide(job_id, action=Action.REJECT, reviewing=True)
    assert outcome.facts["applied"] == ["o_001", "o_002"]
    assert outcome.facts["completed"]
    assert (await workflow.execute(job_id, "review_two")).facts["completed"]
    await workflow.run(job_id, "free", proposed(0.5))
    assert (await workflow.record(job_id))["status"] == "completed"


async def test_items_without_a_review_can_be_decided(workflow: WorkflowHarness) -> None:
    definition = WorkflowDefinition(
        "open_v1",
        (
            StepDefinition("ideas", "i", "idea", 0.5, proposes=True),
            StepDefinition("use", "u", "use", 0.5),
        ),
    )
    job_id = await workflow.create(definition=definition)
    await workflow.run(job_id, "ideas", proposed(0.5))
    outcome = await workflow.decide(job_id, [approve("i_001")])
    assert outcome.answer is OK
    assert outcome.facts["pending"] == 0
    assert (await workflow.decide(job_id, [], reviewing=True)).facts == {"code": "not_reviewable"}
    await workflow.run(job_id, "use", NOTHING)
    assert (await workflow.decide(job_id, [approve("i_001")])).facts == {"code": "not_reviewable"}


# -- EXPIRE_REVIEW: a review that was not finished in time ends as its options say ----------------


def options(on_timeout: OnTimeout) -> ReviewOptions:
    return ReviewOptions(timeout_s=60, on_timeout=on_timeout)


async def run_out(workflow: WorkflowHarness, job_id: str) -> None:
    """Let the review's time pass."""
    await workflow.client.zadd(workflow.keys.reviews, {job_id: 1})


async def time_out(workflow: WorkflowHarness, job_id: str) -> WorkflowOutcome:
    return await workflow.store.expire_review(job_id, fresh_ids(), ADMISSION)


async def test_only_expired_reviews_are_found_and_ended(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(review=options(OnTimeout.FAIL))
    other = await workflow.in_review(review=options(OnTimeout.FAIL))
    assert await workflow.store.expired_reviews() == []
    async with workflow.unchanged():
        assert (await time_out(workflow, job_id)).answer is ALREADY
    await run_out(workflow, job_id)
    assert await workflow.store.expired_reviews() == [job_id]
    await run_out(workflow, other)
    assert await workflow.store.expired_reviews(limit=1) == [job_id]


async def test_an_expired_review_fails_the_job_for_now(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(review=options(OnTimeout.FAIL))
    await run_out(workflow, job_id)
    assert (await time_out(workflow, job_id)).answer is OK
    record = await workflow.record(job_id)
    assert (record["status"], record["draft_state"]) == ("failed", "failed")
    assert record["completed_ms"] != ""
    assert (await workflow.types(job_id))[-2:] == ["step.failed", "job.failed"]
    [error] = (await workflow.events(job_id))[-2][2]["errors"]
    assert error["code"] == "review_timeout"
    assert "3 items" in error["message"]
    assert await workflow.client.zcard(workflow.keys.reviews) == 0
    assert (await time_out(workflow, job_id)).answer is ALREADY
    # Later a decision is made after all.
    assert (await workflow.decide(job_id, action=Action.APPROVE, reviewing=True)).facts["completed"]
    await workflow.has(job_id, status="running", draft_state="dirty", completed_ms="")


@pytest.mark.parametrize(
    ("on_timeout", "counts"),
    [(OnTimeout.APPROVE, (0, 2, 0, 0, 2)), (OnTimeout.REJECT, (0, 0, 2, 0, 0))],
)
async def test_undecided_items_are_decided_and_the_job_continues(
    workflow: WorkflowHarness, on_timeout: OnTimeout, counts: tuple[int, ...]
) -> None:
    job_id = await workflow.in_review_by_itself(options(on_timeout))
    await run_out(workflow, job_id)
    outcome = await time_out(workflow, job_id)
    assert outcome.facts["completed"]
    assert outcome.facts["started"]["step"] == "apply"
    assert await workflow.counters(job_id) == counts
    await workflow.has(job_id, last_operation=f"{on_timeout.value}_filtered")
    audit = await workflow.payload(job_id, "r_001")
    assert (audit["who"], audit["proposals"]) == ("timeout", ["p_001", "p_002"])
    assert await workflow.stack(job_id) == [audit["undo_token"]]
    queued = len(await workflow.queued())
    assert (await time_out(workflow, job_id)).answer is ALREADY
    assert len(await workflow.queued()) == queued


async def test_an_expired_review_can_cancel_the_job(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(review=options(OnTimeout.CANCEL))
    await run_out(workflow, job_id)
    assert (await time_out(workflow, job_id)).answer is OK
    assert (await workflow.record(job_id))["status"] == "cancelled"
    assert (await workflow.statuses(job_id))[2] == "cancelled"
    kind, _, data = (await workflow.events(job_id))[-1]
    assert (kind, data["reason"]) == ("job.cancelled", "review_timeout")


async def test_an_expired_review_can_complete_and_be_undone(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review(review=options(OnTimeout.REJECT))
    await run_out(workflow, job_id)
    assert (await time_out(workflow, job_id)).facts == {"completed": True}
    [token] = await workflow.stack(job_id)
    assert (await workflow.undo(job_id, token)).answer is OK
    assert (await workflow.record(job_id))["status"] == "waiting_input"
    assert await workflow.store.expired_reviews() == []  # it has its full time again
    # Without pending items it completes, regardless of its option.
    job_id = await workflow.in_review(0.5, review=options(OnTimeout.FAIL))
    await workflow.client.hset(workflow.keys.job(job_id), "proposed", 0)  # changed by a third party
    await run_out(workflow, job_id)
    assert (await time_out(workflow, job_id)).facts["completed"]
    assert (await workflow.record(job_id))["status"] == "running"
    assert (await workflow.statuses(job_id))[2] == "complete"


async def test_a_review_without_a_timeout_is_checked_again_later(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review()
    await run_out(workflow, job_id)
    assert await workflow.store.expired_reviews() == [job_id]
    before = await workflow.events(job_id)
    assert (await time_out(workflow, job_id)).answer is ALREADY
    assert await workflow.store.expired_reviews() == []
    assert await workflow.client.zcard(workflow.keys.reviews) == 1
    assert await workflow.events(job_id) == before
    # Jobs that are gone or not waiting leave the list.
    await workflow.client.delete(workflow.keys.reviews)
    job_id = await workflow.create()
    await run_out(workflow, job_id)
    await run_out(workflow, "wf_20260214_999")
    assert (await time_out(workflow, "wf_20260214_999")).answer is MISSING
    assert (await time_out(workflow, job_id)).answer is ALREADY
    assert await workflow.client.zcard(workflow.keys.reviews) == 0


async def test_a_queue_of_the_wrong_type_fails_before_any_write(workflow: WorkflowHarness) -> None:
    job_id = await workflow.in_review_by_itself(options(OnTimeout.APPROVE))
    await run_out(workflow, job_id)
    await workflow.client.delete(workflow.jobs.queue)
    await workflow.client.set(workflow.jobs.queue, "spoilt")
    async with workflow.unchanged():
        with pytest.raises(CorruptKey):
            await time_out(workflow, job_id)
        with pytest.raises(CorruptKey):
            await workflow.decide(job_id, action=Action.APPROVE)
