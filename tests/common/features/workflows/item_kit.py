"""Helpers for tests of items: jobs in review, decisions, undo data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from common import codec
from common.contracts.workflow.statuses import Action, ItemStatus
from common.features.workflows.definitions import ReviewOptions
from common.features.workflows.types import (
    DecideCommand,
    Decision,
    EditCommand,
    IdempotencyClaim,
    NewItem,
    StepExecution,
    StepResult,
    WorkflowAnswer,
    WorkflowOutcome,
)
from tests.common.features.workflows.kit import ADMISSION, Flow, fresh_ids, once

OK = WorkflowAnswer.OK
REFUSED = WorkflowAnswer.REFUSED
MISSING = WorkflowAnswer.MISSING


def approve(item_id: str, version: int = 0, note: str = "") -> Decision:
    return Decision(item_id, Action.APPROVE, version, note)


def reject(item_id: str, version: int = 0, note: str = "") -> Decision:
    return Decision(item_id, Action.REJECT, version, note)


def reset(item_id: str) -> Decision:
    return Decision(item_id, Action.RESET)


def proposed(*confidences: float) -> StepResult:
    """The result of a step that proposes one item per confidence."""
    items = [
        NewItem(b'{"n":%d}' % number, ItemStatus.PROPOSED.value, confidence)
        for number, confidence in enumerate(confidences, 1)
    ]
    return StepResult(f"{len(items)} proposals", items)


async def with_proposals(flow: Flow, *confidences: float, **changes: Any) -> str:
    """A job with proposals whose review has not begun."""
    job_id = await flow.create(**changes)
    await flow.run(job_id, "first")
    await flow.run(job_id, "second", proposed(*confidences or (0.5, 0.5, 0.5)))
    return job_id


async def in_review(flow: Flow, *confidences: float, **changes: Any) -> str:
    """A job that waits in its review."""
    job_id = await with_proposals(flow, *confidences, **changes)
    entered = await flow.execute(job_id, "review")
    assert entered.facts["waiting"]
    return job_id


async def in_review_by_itself(flow: Flow, review: ReviewOptions | None = None) -> str:
    """The same with `auto_advance`."""
    job_id = await flow.create(auto_advance=True, review=review or ReviewOptions())
    first = await flow.client.hget(flow.keys.steps(job_id), "first.execution")
    running = StepExecution(job_id, "first", first.decode())
    second = flow.started(job_id, await flow.complete(running))
    outcome = await flow.complete(second, proposed(0.5, 0.5))
    assert outcome.answer is OK
    return job_id


async def decide(
    flow: Flow,
    job_id: str,
    decisions: Sequence[Decision] = (),
    request: IdempotencyClaim | None = None,
    admission: Any = ADMISSION,
    **changes: Any,
) -> WorkflowOutcome:
    changes.setdefault("token", os.urandom(4).hex())
    wanted = DecideCommand(job_id, "somebody", decisions, **changes)
    return await flow.store.decide(wanted, request or once(), fresh_ids(), admission)


async def edit(
    flow: Flow,
    job_id: str,
    item_id: str,
    version: int,
    request: IdempotencyClaim | None = None,
    admission: Any = ADMISSION,
    **changes: Any,
) -> WorkflowOutcome:
    fields: dict[str, Any] = {
        "payload": b'{"n":"new"}',
        "confidence": 0.75,
        "auto_approve": True,
        "who": "somebody",
        "token": os.urandom(4).hex(),
    }
    wanted = EditCommand(job_id, item_id, version=version, **{**fields, **changes})
    return await flow.store.edit(wanted, request or once(), fresh_ids(), admission)


async def undo(
    flow: Flow, job_id: str, token: str, request: IdempotencyClaim | None = None
) -> WorkflowOutcome:
    return await flow.store.undo(job_id, token, request or once())


async def item(flow: Flow, job_id: str, item_id: str) -> str:
    """Status, version, edited and confidence."""
    return (await flow.states(job_id))[item_id]


async def payload(flow: Flow, job_id: str, item_id: str) -> Any:
    return codec.loads(await flow.client.hget(flow.keys.items(job_id), item_id))


async def undoable(flow: Flow, job_id: str) -> dict[str, str]:
    found = await flow.client.hgetall(flow.keys.undoable(job_id))
    return {name.decode(): token.decode() for name, token in found.items()}


async def stack(flow: Flow, job_id: str) -> list[str]:
    """Tokens of operations that can be undone; each operation exists."""
    tokens = await flow.client.lrange(flow.keys.undo(job_id), 0, -1)
    for token in tokens:
        assert await flow.client.hexists(flow.keys.operations(job_id), token)
    return [token.decode() for token in tokens]


async def counters(flow: Flow, job_id: str) -> tuple[int, ...]:
    """Numbers of proposed, approved, rejected, applied items, and of unapplied changes."""
    record = await flow.record(job_id)
    names = ("proposed", "approved", "rejected", "applied", "pending_changes")
    return tuple(int(record.get(name, 0)) for name in names)
