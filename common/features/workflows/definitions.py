"""Workflow definitions: steps, their order and weights, and reviews."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.jobs import TTL_MAX_S
from sluice.common.contracts.workflow.fields import DefinitionField, ReviewField
from sluice.common.contracts.workflow.statuses import DraftState, OnTimeout, ReviewMode, StepKind

MOST_STEPS: Final = 32
MOST_ATTEMPTS: Final = 1_000
_NAME: Final = re.compile(r"\A[a-z][a-z0-9_]{0,63}\Z")
_PREFIX: Final = re.compile(r"\A[a-z][a-z0-9]{0,7}\Z")
_SUM_MARGIN: Final = 1e-6


@dataclass(frozen=True)
class StepDefinition:
    """One step of a workflow."""

    name: str
    #: Prefix of its item ids: `p` for `p_001`.
    prefix: str
    #: `type` of its items.
    item_type: str
    #: Its share of the job's progress, 0 to 1.
    weight: float
    kind: StepKind = StepKind.WORK
    #: For a review: the earlier step whose items are reviewed.
    reviews: str = ""
    #: Whether its items are proposals, which can be approved, rejected and edited.
    proposes: bool = False
    #: The draft state while it runs.
    draft: DraftState = DraftState.DIRTY
    #: Whether its success applies all changes.
    settles: bool = False
    #: Timeout and attempts of its core job; None for the worker's defaults.
    timeout_s: float | None = None
    max_attempts: int | None = None
    #: JSON Schema of its options; None allows any.
    options_schema: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            DefinitionField.NAME: self.name,
            DefinitionField.PREFIX: self.prefix,
            DefinitionField.ITEM_TYPE: self.item_type,
            DefinitionField.WEIGHT: self.weight,
            DefinitionField.KIND: self.kind.value,
            DefinitionField.REVIEWS: self.reviews,
            DefinitionField.PROPOSES: self.proposes,
            DefinitionField.DRAFT: self.draft.value,
            DefinitionField.SETTLES: self.settles,
            DefinitionField.TIMEOUT_S: self.timeout_s,
            DefinitionField.MAX_ATTEMPTS: self.max_attempts,
            DefinitionField.OPTIONS_SCHEMA: self.options_schema,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> StepDefinition:
        """Parse a stored step; raises KeyError, TypeError or ValueError."""
        return cls(
            name=str(stored[DefinitionField.NAME]),
            prefix=str(stored[DefinitionField.PREFIX]),
            item_type=str(stored[DefinitionField.ITEM_TYPE]),
            weight=float(stored[DefinitionField.WEIGHT]),
            kind=StepKind(stored[DefinitionField.KIND]),
            reviews=str(stored[DefinitionField.REVIEWS]),
            proposes=bool(stored[DefinitionField.PROPOSES]),
            draft=DraftState(stored[DefinitionField.DRAFT]),
            settles=bool(stored[DefinitionField.SETTLES]),
            timeout_s=stored[DefinitionField.TIMEOUT_S],
            max_attempts=stored[DefinitionField.MAX_ATTEMPTS],
            options_schema=stored[DefinitionField.OPTIONS_SCHEMA],
        )


@dataclass(frozen=True)
class WorkflowDefinition:
    """A workflow; raises ValueError if it is invalid."""

    name: str
    steps: tuple[StepDefinition, ...]
    description: str = ""

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"{self.name!r} is not a workflow name; write it like my_flow_v2")
        if not 1 <= len(self.steps) <= MOST_STEPS:
            raise ValueError(f"workflow {self.name!r} needs 1 to {MOST_STEPS} steps")
        self._check_steps()
        whole = math.fsum(step.weight for step in self.steps)
        if abs(whole - 1.0) > _SUM_MARGIN:
            raise ValueError(f"the weights of workflow {self.name!r} sum to {whole}, not to 1")

    def _check_steps(self) -> None:
        before: dict[str, StepDefinition] = {}
        for step in self.steps:
            where = f"step {step.name!r} of workflow {self.name!r}"
            if not _NAME.match(step.name):
                raise ValueError(f"{where}: write its name like index_extract")
            if not _PREFIX.match(step.prefix):
                raise ValueError(f"{where}: {step.prefix!r} is not valid as a prefix of item ids")
            if step.name in before or step.prefix in {each.prefix for each in before.values()}:
                raise ValueError(f"{where}: another step has its name or prefix")
            if not 0 <= step.weight <= 1:
                raise ValueError(f"{where}: its weight must be between 0 and 1")
            _check_limits(step, where)
            if step.kind is StepKind.REVIEW:
                reviewed = before.get(step.reviews)
                if reviewed is None or not reviewed.proposes:
                    raise ValueError(f"{where}: it must review an earlier step that proposes")
            elif step.reviews:
                raise ValueError(f"{where}: only a review step may set `reviews`")
            before[step.name] = step

    def step(self, name: str) -> StepDefinition | None:
        return next((step for step in self.steps if step.name == name), None)

    def step_of_item(self, item_id: str) -> StepDefinition | None:
        """The step to which an item with this id belongs."""
        prefix = item_id.rpartition("_")[0]
        return next((step for step in self.steps if step.prefix == prefix), None)

    def to_json(self) -> bytes:
        """As stored in Redis and read by Lua."""
        return codec.dumps(
            {
                DefinitionField.NAME: self.name,
                DefinitionField.DESCRIPTION: self.description,
                DefinitionField.STEPS: [step.to_dict() for step in self.steps],
            }
        )

    @classmethod
    def from_json(cls, raw: bytes) -> WorkflowDefinition:
        """Parse a stored definition; raises ValueError."""
        try:
            stored = codec.loads(raw)
            return cls(
                name=str(stored[DefinitionField.NAME]),
                steps=tuple(
                    StepDefinition.from_dict(step) for step in stored[DefinitionField.STEPS]
                ),
                description=str(stored.get(DefinitionField.DESCRIPTION, "")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a workflow: {error!r}") from error


def _check_limits(step: StepDefinition, where: str) -> None:
    """Check values that may be wrong in a definition read from Redis."""
    timeout_s, attempts, schema = step.timeout_s, step.max_attempts, step.options_schema
    if timeout_s is not None and not (_is_number(timeout_s) and 0 < timeout_s <= TTL_MAX_S):
        raise ValueError(f"{where}: its timeout_s must be between 0 and {TTL_MAX_S} seconds")
    if attempts is not None and not (type(attempts) is int and 1 <= attempts <= MOST_ATTEMPTS):
        raise ValueError(f"{where}: its max_attempts must be 1 to {MOST_ATTEMPTS}")
    if schema is not None and not isinstance(schema, Mapping):
        raise ValueError(f"{where}: its options_schema must be a JSON object")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@dataclass(frozen=True)
class ReviewOptions:
    """Review options of a job."""

    mode: ReviewMode = ReviewMode.MANUAL
    #: In mode `auto`: proposals with at least this confidence are approved automatically.
    min_confidence: float = 0.95
    #: Seconds a review may take; None: as long as the job is kept.
    timeout_s: float | None = None
    on_timeout: OnTimeout = field(default=OnTimeout.FAIL)

    def to_json(self) -> bytes:
        """As stored in Redis and read by Lua."""
        return codec.dumps(
            {
                ReviewField.MODE: self.mode.value,
                ReviewField.MIN_CONFIDENCE: self.min_confidence,
                ReviewField.TIMEOUT_S: self.timeout_s,
                ReviewField.ON_TIMEOUT: self.on_timeout.value,
            }
        )
