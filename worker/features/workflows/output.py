"""The output of a step, and its validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluice.common import codec
from sluice.common.contracts.workflow.statuses import MOST_ITEM_BYTES, MOST_ITEMS, ItemStatus
from sluice.common.features.workflows.types import NewItem, StepResult
from sluice.worker.features.workflows.errors import StepError

#: Limits in bytes of JSON: all items of a step, and its errors.
MOST_OUTPUT_BYTES: Final = 16 * 1024 * 1024
MOST_ERRORS_BYTES: Final = 64 * 1024
MOST_SUMMARY_CHARS: Final = 1000
#: Error code of an invalid output.
OUTPUT_INVALID: Final = "step_output_invalid"
_STATUSES: Final = frozenset(status.value for status in ItemStatus)


@dataclass(frozen=True)
class StepItem:
    """An item; it gets its id when the step completes."""

    payload: Mapping[str, Any]
    status: str = ItemStatus.COMPLETE.value
    #: From 0 to 1; used by filters and automatic reviews.
    confidence: float = 1.0


@dataclass(frozen=True)
class StepOutput:
    """Output of a successful step. Its items replace those of earlier executions."""

    #: One sentence for people.
    summary: str
    items: Sequence[StepItem] = ()
    #: Problems that did not fail the step: `{"code", "message", …}` each.
    errors: Sequence[Mapping[str, Any]] = field(default_factory=list)
    #: Items of earlier steps whose status this step changes: id, status, version that was read.
    changed: Sequence[tuple[str, str, int]] = ()
    #: Token of the operation that undoes the step, if there is one.
    undo_token: str = ""


def step_result(output: StepOutput) -> StepResult:
    """Validate the output of a step. Raises StepError."""
    if not isinstance(output, StepOutput):
        raise StepError(
            OUTPUT_INVALID, f"the step returned {type(output).__name__}, not a StepOutput"
        )
    if len(output.items) > MOST_ITEMS:
        raise StepError(
            OUTPUT_INVALID,
            f"the step returned {len(output.items)} items, {MOST_ITEMS} at most; keep the best",
        )
    items = [_item(item) for item in output.items]
    size = sum(len(item.payload) for item in items)
    if size > MOST_OUTPUT_BYTES:
        raise StepError(
            OUTPUT_INVALID,
            f"the step's items have {size} bytes, {MOST_OUTPUT_BYTES} at most; store long "
            "data with put() and refer to it in the items",
        )
    errors = _json(list(output.errors), "its errors", MOST_ERRORS_BYTES) if output.errors else b""
    summary = output.summary[:MOST_SUMMARY_CHARS].encode(errors="replace").decode()
    return StepResult(summary, items, errors, tuple(output.changed), output.undo_token)


def _item(item: StepItem) -> NewItem:
    if item.status not in _STATUSES:
        known = ", ".join(sorted(_STATUSES))
        raise StepError(
            OUTPUT_INVALID, f"{item.status!r} is not a status of an item; statuses: {known}"
        )
    if not (math.isfinite(item.confidence) and 0 <= item.confidence <= 1):
        raise StepError(
            OUTPUT_INVALID, f"a confidence is {item.confidence}; it must be between 0 and 1"
        )
    payload = _json(dict(item.payload), "an item", MOST_ITEM_BYTES)
    return NewItem(payload, item.status, item.confidence)


def _json(value: object, what: str, most_bytes: int) -> bytes:
    try:
        encoded = codec.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StepError(OUTPUT_INVALID, f"{what} of the step is not JSON: {error}") from None
    if len(encoded) > most_bytes:
        raise StepError(
            OUTPUT_INVALID,
            f"{what} of the step has {len(encoded)} bytes of JSON, {most_bytes} at most; store "
            "long data with put()",
        )
    return encoded
