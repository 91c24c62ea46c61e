"""What the gateway says of workflows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from client.core.raw import everything

#: How a workflow job can end; a failed one may still be taken up again.
ENDED = ("completed", "failed", "cancelled")
WAITING_INPUT = "waiting_input"


@dataclass(frozen=True)
class WorkflowJob:
    """A workflow job as it stands; `stepper` has its steps, `progress` is a fraction."""

    job_id: str
    workflow: str
    status: str
    progress: float
    current_step: str | None = None
    draft_state: str = ""
    started_at: str | None = None
    updated_at: str | None = None
    completed_at: str | None = None
    stepper: Sequence[Any] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = everything()

    @property
    def ended(self) -> bool:
        """Whether nothing goes on by itself any more."""
        return self.status in ENDED

    @property
    def waits(self) -> bool:
        """Whether somebody has to decide."""
        return self.status == WAITING_INPUT


@dataclass(frozen=True)
class WorkflowItem:
    """Something that a step has found or proposed."""

    id: str
    type: str
    status: str
    payload: Any
    version: int
    undo_token: str | None = None
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class StepResult:
    """What came of executing a step: `ended` is False where it still runs, or waits."""

    job_id: str
    ended: bool
    success: bool
    execution_id: str | None
    result: Mapping[str, Any] | None
    errors: Sequence[Any]
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class Decided:
    """What came of a bulk decision."""

    success: bool
    applied: Any
    failed: Any
    undo_token: str | None = None
    pending: int | None = None
    completed: bool = False
    errors: Sequence[Any] = ()
    raw: Mapping[str, Any] = everything()


@dataclass(frozen=True)
class WebhookLetter:
    """A delivery that was given up."""

    event_id: str
    job_id: str
    url: str
    failed_at: str
    attempts: int
    event_type: str = ""
    attempts_detail: Sequence[Any] = ()
    redrive: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = everything()
