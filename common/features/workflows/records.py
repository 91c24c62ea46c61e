"""Workflow jobs, steps and items as read from Redis; invalid values become neutral ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sluice.common import codec
from sluice.common.contracts import values_of
from sluice.common.contracts.workflow.fields import ReviewField, StepField, WorkflowJobField
from sluice.common.contracts.workflow.statuses import (
    DeliveryStatus,
    DraftState,
    ItemStatus,
    OnTimeout,
    ReviewMode,
    StepKind,
    StepStatus,
    WorkflowStatus,
)
from sluice.common.errors import CorruptKey
from sluice.common.features.workflows.definitions import (
    ReviewOptions,
    StepDefinition,
    WorkflowDefinition,
)

#: Highest progress of a job that is not completed.
MAX_UNFINISHED_PROGRESS = 0.99
#: Fields read of a step. Its options are not read: they may be long.
STEP_FIELDS = tuple(field for field in values_of(StepField) if field != StepField.OPTIONS)

#: Cached, because looking up a name costs more than everything else done with a field.
_NAMES = {field: field.encode() for field in values_of(WorkflowJobField)}

_Kind = TypeVar("_Kind", bound=Enum)


@dataclass(frozen=True, slots=True)
class PageInfo:
    """A page of a list: its size, whether more follow, the last number, and the total."""

    count: int
    has_more: bool
    #: Number of the page's last entry, if more follow.
    last: int
    total: int


EMPTY_PAGE = PageInfo(0, False, 0, 0)


class Item(NamedTuple):
    """A result of a step."""

    id: str
    #: Its number among all items of the job.
    seq: int
    step: str
    type: str
    status: ItemStatus
    payload: bytes
    version: int
    edited: bool
    confidence: float
    #: Whether its last change can be undone.
    undoable: bool = False


class ItemPage(NamedTuple):
    """A page of a job's items, in order of creation."""

    items: Sequence[Item]
    page: PageInfo


class EventPage(NamedTuple):
    """A page of a job's events, oldest first."""

    events: Sequence[codec.Event]
    page: PageInfo


class JobCursor(NamedTuple):
    """A position in the list of all jobs: after the job with this creation time and id."""

    ms: int
    job_id: str
    #: Number of following jobs to skip.
    offset: int = 0


class JobPage(NamedTuple):
    """A page of jobs, newest first; `last` is the cursor of the next page, if any."""

    jobs: Sequence[WorkflowJob]
    last: JobCursor | None
    total: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The state of a step."""

    name: str
    status: StepStatus = StepStatus.NOT_STARTED
    updated_ms: int = 0
    started_ms: int = 0
    attempt: int = 0
    execution: str = ""
    core_job: str = ""
    summary: str = ""
    count: int = 0
    errors: tuple[Mapping[str, Any], ...] = ()
    done: int = 0
    total: int = 0
    parts: int = 0
    undo_token: str = ""

    @classmethod
    def from_fields(cls, name: str, stored: Mapping[str, bytes]) -> StepRecord:
        def get(field: str) -> bytes:
            return stored.get(field, b"")

        return cls(
            name=name,
            status=_one_of(StepStatus, get(StepField.STATUS), StepStatus.NOT_STARTED),
            updated_ms=_number(get(StepField.UPDATED_MS)),
            started_ms=_number(get(StepField.STARTED_MS)),
            attempt=_number(get(StepField.ATTEMPT)),
            execution=codec.decode_text(get(StepField.EXECUTION)),
            core_job=codec.decode_text(get(StepField.CORE_JOB)),
            summary=codec.decode_text(get(StepField.SUMMARY)),
            count=_number(get(StepField.COUNT)),
            errors=_objects(get(StepField.ERRORS)),
            done=_number(get(StepField.DONE)),
            total=_number(get(StepField.TOTAL)),
            parts=_number(get(StepField.PARTS)),
            undo_token=codec.decode_text(get(StepField.UNDO_TOKEN)),
        )

    @property
    def fraction(self) -> float:
        """The share that is done, as far as the step reports it."""
        return min(1.0, self.done / self.total) if self.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WorkflowJob:
    """The state of a workflow job."""

    job_id: str
    definition: WorkflowDefinition
    status: WorkflowStatus
    current_step: str
    draft_state: DraftState
    started_ms: int
    updated_ms: int
    completed_ms: int
    ttl_s: int
    steps: Mapping[str, StepRecord]
    idempotency_key: str = ""
    tenant: str = ""
    tail: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""
    review: ReviewOptions = field(default_factory=ReviewOptions)
    auto_advance: bool = False
    target: str = ""
    webhook_url: str = ""
    webhook_events: tuple[str, ...] = ()
    webhook_status: DeliveryStatus | None = None
    webhook_ms: int = 0
    event_seq: int = 0
    #: Numbers of items under review by status, and of unapplied changes.
    proposed: int = 0
    approved: int = 0
    rejected: int = 0
    applied: int = 0
    pending_changes: int = 0
    last_operation: str = ""
    undo_depth: int = 0
    last_undo_token: str = ""
    #: First pages of its events and items.
    events: PageInfo = EMPTY_PAGE
    items: PageInfo = EMPTY_PAGE

    @classmethod
    def from_hash(
        cls, job_id: str, stored: Mapping[bytes, bytes], steps: Mapping[str, StepRecord]
    ) -> WorkflowJob:
        """From HGETALL; raises CorruptKey if it is invalid."""

        def get(field: str) -> bytes:
            return stored.get(_NAMES[field], b"")

        status = _one_of(WorkflowStatus, get(WorkflowJobField.STATUS), None)
        if status is None:
            raise CorruptKey(f"workflow job {job_id} has an unknown status")
        definition = parse_job_definition(get(WorkflowJobField.DEFINITION), job_id)
        current = codec.decode_text(get(WorkflowJobField.CURRENT_STEP))
        return cls(
            job_id=job_id,
            definition=definition,
            status=status,
            current_step=(definition.step(current) or definition.steps[0]).name,
            draft_state=_one_of(DraftState, get(WorkflowJobField.DRAFT_STATE), DraftState.CLEAN),
            started_ms=_number(get(WorkflowJobField.STARTED_MS)),
            updated_ms=_number(get(WorkflowJobField.UPDATED_MS)),
            completed_ms=_number(get(WorkflowJobField.COMPLETED_MS)),
            ttl_s=_number(get(WorkflowJobField.TTL_S)),
            steps={
                step.name: steps.get(step.name, StepRecord(step.name)) for step in definition.steps
            },
            idempotency_key=codec.decode_text(get(WorkflowJobField.IDEMPOTENCY_KEY)),
            tenant=codec.decode_text(get(WorkflowJobField.TENANT)),
            tail=codec.decode_text(get(WorkflowJobField.TAIL)),
            metadata=_object(get(WorkflowJobField.METADATA)),
            namespace=codec.decode_text(get(WorkflowJobField.NAMESPACE)),
            review=_review(get(WorkflowJobField.REVIEW)),
            auto_advance=get(WorkflowJobField.AUTO_ADVANCE) == b"1",
            target=codec.decode_text(get(WorkflowJobField.TARGET)),
            webhook_url=codec.decode_text(get(WorkflowJobField.WEBHOOK_URL)),
            webhook_events=tuple(codec.decode_text(get(WorkflowJobField.WEBHOOK_EVENTS)).split()),
            webhook_status=_one_of(DeliveryStatus, get(WorkflowJobField.WEBHOOK_STATUS), None),
            webhook_ms=_number(get(WorkflowJobField.WEBHOOK_MS)),
            event_seq=_number(get(WorkflowJobField.EVENT_SEQ)),
            proposed=_number(get(WorkflowJobField.PROPOSED)),
            approved=_number(get(WorkflowJobField.APPROVED)),
            rejected=_number(get(WorkflowJobField.REJECTED)),
            applied=_number(get(WorkflowJobField.APPLIED)),
            pending_changes=_number(get(WorkflowJobField.PENDING_CHANGES)),
            last_operation=codec.decode_text(get(WorkflowJobField.LAST_OPERATION)),
        )

    def step(self, definition: StepDefinition) -> StepRecord:
        return self.steps[definition.name]

    @property
    def completed_steps(self) -> list[str]:
        return [name for name, step in self.steps.items() if step.status is StepStatus.COMPLETE]

    @property
    def progress(self) -> float:
        """From 0 to 1, in hundredths; 1 only if it is completed."""
        if self.status is WorkflowStatus.COMPLETED:
            return 1.0
        done = math.fsum(
            each.weight * self._fraction(each, self.steps[each.name])
            for each in self.definition.steps
        )
        return min(round(done, 2), MAX_UNFINISHED_PROGRESS)

    def _fraction(self, definition: StepDefinition, step: StepRecord) -> float:
        if step.status is StepStatus.COMPLETE:
            return 1.0
        if step.status is StepStatus.NOT_STARTED:
            return 0.0
        if definition.kind is StepKind.REVIEW:
            decided = self.approved + self.rejected + self.applied
            return decided / (decided + self.proposed) if decided else 0.0
        return step.fraction


def parse_job_definition(raw: bytes, job_id: str) -> WorkflowDefinition:
    """The definition of a job; raises CorruptKey if it is invalid."""
    try:
        return _definition(raw)
    except ValueError as error:
        raise CorruptKey(f"workflow job {job_id} has no valid definition: {error}") from None


@lru_cache(maxsize=64)
def _definition(raw: bytes) -> WorkflowDefinition:
    return WorkflowDefinition.from_json(raw)


def parse_item(
    definition: WorkflowDefinition, item_id: str, seq: int, payload: bytes, state: bytes
) -> Item | None:
    """An item from its stored parts; None if it is invalid."""
    step = definition.step_of_item(item_id)
    parts = codec.decode_text(state).split(" ")
    if step is None or len(parts) < 4:
        return None
    status = _one_of(ItemStatus, parts[0].encode(), None)
    if status is None:
        return None
    try:
        confidence = float(parts[3])
    except ValueError:
        confidence = 0.0
    return Item(
        id=item_id,
        seq=seq,
        step=step.name,
        type=step.item_type,
        status=status,
        payload=payload,
        version=_number(parts[1].encode()),
        edited=parts[2] == "1",
        confidence=confidence if math.isfinite(confidence) else 0.0,
    )


def _number(raw: bytes) -> int:
    return max(0, codec.parse_int(raw)) if raw else 0


def _one_of(kind: type[_Kind], raw: bytes, default: Any) -> Any:
    try:
        return kind(codec.decode_text(raw))
    except ValueError:
        return default


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = codec.loads(raw) if raw else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _objects(raw: bytes) -> tuple[Mapping[str, Any], ...]:
    try:
        value = codec.loads(raw) if raw else []
    except ValueError:
        return ()
    return (
        tuple(each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()
    )


def _review(raw: bytes) -> ReviewOptions:
    stored = _object(raw)
    usual = ReviewOptions()
    least, timeout_s = (
        stored.get(ReviewField.MIN_CONFIDENCE),
        stored.get(ReviewField.TIMEOUT_S),
    )
    return ReviewOptions(
        mode=_one_of(ReviewMode, str(stored.get(ReviewField.MODE)).encode(), usual.mode),
        min_confidence=float(least) if isinstance(least, (int, float)) else usual.min_confidence,
        timeout_s=float(timeout_s) if isinstance(timeout_s, (int, float)) else None,
        on_timeout=_one_of(
            OnTimeout, str(stored.get(ReviewField.ON_TIMEOUT)).encode(), usual.on_timeout
        ),
    )
