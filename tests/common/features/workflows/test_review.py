"""Reviews: how one begins, waits, approves automatically and ends."""

from __future__ import annotations

import time

import pytest

from common.contracts.workflow.statuses import Action, OnTimeout, ReviewMode, StepKind
from common.features.workflows.definitions import ReviewOptions, StepDefinition, WorkflowDefinition
from tests.common.features.workflows.item_kit import (
    OK,
    approve,
    counters,
    decide,
    in_review,
    in_review_by_itself,
    item,
    payload,
    proposed,
    stack,
    undo,
    with_proposals,
)
from tests.common.features.workflows.kit import NOTHING, Flow, hooked, once

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


async def test_a_waiting_review_uses_no_worker(flow: Flow) -> None:
    job_id = await in_review(flow, webhook=hooked("job.waiting_input"))
    record = await flow.record(job_id)
    assert (record["status"], record["current_step"]) == ("waiting_input", "review")
    assert await flow.statuses(job_id) == ["complete"] * 2 + ["waiting_input"] + ["not_started"] * 2
    assert await flow.running() == {}
    assert len(await flow.queued()) == 2
    started, waits = (await flow.events(job_id))[-2:]
    assert started[:2] == ("step.started", "review")
    assert waits == ("job.waiting_input", "review", {"step": "review", "pending": 3})
    [delivered] = await flow.outbox(job_id)
    assert (delivered["type"], delivered["status"]) == ("job.waiting_input", "waiting_input")
    step = await flow.step(job_id, "review")
    assert (step["attempt"], step["done"], step["total"]) == ("1", "0", "3")
    assert await flow.without_ttl() == []


async def test_an_auto_advance_job_waits_in_its_review(flow: Flow) -> None:
    job_id = await in_review_by_itself(flow)
    assert (await flow.record(job_id))["status"] == "waiting_input"
    assert len(await flow.queued()) == 2


async def test_a_repeated_execute_leaves_a_review_waiting(flow: Flow) -> None:
    job_id = await in_review(flow)
    before = await flow.events(job_id)
    entered = await flow.execute(job_id, "review")
    assert entered.facts["waiting"]
    assert entered.facts["pending"] == 3
    assert await flow.events(job_id) == before
    assert (await flow.step(job_id, "review"))["attempt"] == "1"


async def test_a_review_without_items_ends_at_once(flow: Flow) -> None:
    job_id = await flow.create()
    await flow.run(job_id, "first")
    await flow.run(job_id, "second")
    entered = await flow.execute(job_id, "review")
    assert entered.facts["completed"]
    assert not entered.facts["waiting"]
    assert (await flow.types(job_id))[-2:] == ["step.started", "step.completed"]
    assert (await flow.step(job_id, "review"))["summary"] == "Nothing to decide"
    assert await flow.client.zcard(flow.keys.reviews) == 0


async def test_confident_items_are_approved_automatically(flow: Flow) -> None:
    job_id = await in_review(flow, 0.95, 0.9, 0.89, review=AUTO)
    assert await item(flow, job_id, "p_001") == "approved 2 0 0.950000"
    assert await item(flow, job_id, "p_002") == "approved 2 0 0.900000"
    assert await item(flow, job_id, "p_003") == "proposed 1 0 0.890000"
    record = await flow.record(job_id)
    assert (record["status"], record["last_operation"]) == ("waiting_input", "approve_filtered")
    audit = await payload(flow, job_id, "r_001")
    assert (audit["who"], audit["proposals"]) == ("auto", ["p_001", "p_002"])
    [token] = await stack(flow, job_id)
    assert audit["undo_token"] == token
    assert (await undo(flow, job_id, token)).facts["undone"] == ["p_001", "p_002"]
    # A decision of a person is kept.
    assert (await flow.execute(job_id, "review")).facts["pending"] == 3


async def test_a_review_of_confident_items_ends_at_once(flow: Flow) -> None:
    job_id = await with_proposals(flow, 0.95, 1.0, review=AUTO)
    entered = await flow.execute(job_id, "review")
    assert entered.facts["completed"]
    assert not entered.facts["waiting"]
    assert "job.waiting_input" not in await flow.types(job_id)
    assert await counters(flow, job_id) == (0, 2, 0, 0, 2)


async def test_a_review_opened_by_a_decision_approves_the_rest(flow: Flow) -> None:
    job_id = await with_proposals(flow, 0.2, 0.95, review=AUTO)
    outcome = await decide(flow, job_id, [approve("p_001")], reviewing=True)
    assert outcome.facts["completed"]
    assert len(await stack(flow, job_id)) == 2


@pytest.mark.parametrize("timeout_s", [None, 30.5])
async def test_a_waiting_review_is_checked_again(flow: Flow, timeout_s: float | None) -> None:
    review = ReviewOptions(timeout_s=timeout_s, on_timeout=OnTimeout.REJECT)
    job_id = await in_review(flow, review=review)
    score = await flow.client.zscore(flow.keys.reviews, job_id)
    expected_ms = (time.time() + (timeout_s or 3600)) * 1000
    assert score == pytest.approx(expected_ms, abs=20_000)
    assert await flow.client.ttl(flow.keys.reviews) > 0


async def test_executing_an_ended_review_reopens_it(flow: Flow) -> None:
    job_id = await in_review(flow)
    await decide(flow, job_id, action=Action.APPROVE)
    await flow.run(job_id, "apply")
    again = await flow.execute(job_id, "review")
    assert again.facts["completed"]  # its decisions are kept
    assert await flow.statuses(job_id) == ["complete"] * 3 + ["not_started"] * 2
    assert (await flow.step(job_id, "review"))["attempt"] == "2"


async def test_a_review_concerns_the_items_of_its_step(flow: Flow) -> None:
    job_id = await flow.create(definition=TWICE)
    await flow.run(job_id, "one", proposed(0.5, 0.5))
    await flow.run(job_id, "two", proposed(0.5))
    assert (await flow.execute(job_id, "review_one")).facts["pending"] == 2
    # A step's items can be decided by name before its own review.
    outcome = await decide(flow, job_id, [approve("t_001")], step="two")
    assert (outcome.facts["applied"], outcome.facts["completed"]) == (["t_001"], False)
    assert (await decide(flow, job_id, [approve("t_001")])).facts["failed"]
    outcome = await decide(flow, job_id, action=Action.REJECT, reviewing=True)
    assert outcome.facts["applied"] == ["o_001", "o_002"]
    assert outcome.facts["completed"]
    assert (await flow.execute(job_id, "review_two")).facts["completed"]
    await flow.run(job_id, "free", proposed(0.5))
    assert (await flow.record(job_id))["status"] == "completed"


async def test_items_without_a_review_can_be_decided(flow: Flow) -> None:
    definition = WorkflowDefinition(
        "open_v1",
        (
            StepDefinition("ideas", "i", "idea", 0.5, proposes=True),
            StepDefinition("use", "u", "use", 0.5),
        ),
    )
    job_id = await flow.create(definition=definition)
    await flow.run(job_id, "ideas", proposed(0.5))
    outcome = await decide(flow, job_id, [approve("i_001")])
    assert outcome.answer is OK
    assert outcome.facts["pending"] == 0
    assert (await decide(flow, job_id, [], reviewing=True)).facts == {"code": "not_reviewable"}
    await flow.run(job_id, "use", NOTHING)
    assert (await decide(flow, job_id, [approve("i_001")])).facts == {"code": "not_reviewable"}


async def test_a_cancelled_review_is_not_checked_any_more(flow: Flow) -> None:
    job_id = await in_review(flow)
    await flow.store.cancel(job_id, once())
    assert await flow.client.zcard(flow.keys.reviews) == 0
    assert await flow.store.expired_reviews() == []
