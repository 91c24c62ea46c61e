"""What a request for a workflow job may say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from common import codec
from common.contracts.rag import DEFAULT_NAMESPACE
from common.contracts.workflow import (
    LONGEST_TTL_S,
    MEMORY_FIRST,
    SOURCES_STEP,
    OnTimeout,
    ReviewMode,
    WorkflowEvent,
)
from common.workflow.definition import MOST_STEPS, ReviewOptions
from gateway.rag_models import NamespaceName
from gateway.workflow.bounds import Bounded, at_most

#: The client's own, as JSON.
MOST_METADATA_BYTES = 16 * 1024
_USUAL = ReviewOptions()
EXAMPLE: dict[str, Any] = {
    "workflow": MEMORY_FIRST,
    "auto_advance": True,
    SOURCES_STEP: [{"type": "text", "title": "Handbook", "text": "A Dead Letter Queue (DLQ) …"}],
}


class WebhookWish(Bounded):
    """Whom to tell."""

    url: Annotated[str, Field(strict=True, min_length=1)] = Field(
        description="http or https, at most 2048 characters, no user name.",
        examples=["https://example/callback"],
    )
    events: list[WorkflowEvent] | None = Field(
        None,
        min_length=1,
        max_length=len(WorkflowEvent),
        description="Which types. Default: all but `step.progress`, `step.reset`, `item.changed` "
        "and `undo.applied`.",
    )


class ReviewWish(Bounded):
    """How its review goes."""

    mode: ReviewMode = Field(
        _USUAL.mode, description="`auto`: proposals that are sure enough need nobody."
    )
    auto_approve_min_confidence: float = Field(
        _USUAL.min_confidence, strict=True, ge=0, le=1, description="What is sure enough."
    )
    timeout_s: Annotated[float, Field(strict=True, gt=0, le=LONGEST_TTL_S)] | None = Field(
        None, description="Seconds that a person may take. Default: no limit."
    )
    on_timeout: OnTimeout = Field(_USUAL.on_timeout, description="What becomes of it then.")

    def options(self) -> ReviewOptions:
        """As the scripts know it."""
        return ReviewOptions(
            self.mode, self.auto_approve_min_confidence, self.timeout_s, self.on_timeout
        )


class CreateWorkflowRequest(Bounded):
    """A workflow job to make."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    workflow: Annotated[str, Field(strict=True, max_length=64)] = Field(
        MEMORY_FIRST, description="Its name."
    )
    idempotency_key: Annotated[str, Field(strict=True)] | None = Field(
        None, description="As the header `Idempotency-Key`; 1 to 255 printable characters."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Your own, at most 16 KB as JSON."
    )
    webhook_url: Annotated[str, Field(strict=True, min_length=1)] | None = Field(
        None, description="Short for `webhook`."
    )
    webhook: WebhookWish | None = Field(None, description="Whom to tell of its events.")
    auto_advance: bool = Field(
        False, strict=True, description="Whether each step that completes starts the next one."
    )
    namespace: NamespaceName = Field(
        DEFAULT_NAMESPACE, description="Of the documents that `rag` reads: where it builds."
    )
    sources: list[Any] | None = Field(
        None, description="Short for the options of the step `sources`, where there is one."
    )
    steps: dict[str, dict[str, Any]] = Field(
        default_factory=dict, max_length=MOST_STEPS, description="Options of steps, by name."
    )
    review: ReviewWish | None = Field(None, description="How its review goes.")

    _few_steps = at_most(MOST_STEPS, "steps")

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, value: dict[str, Any]) -> dict[str, Any]:
        size = len(codec.dumps(value))
        if size > MOST_METADATA_BYTES:
            raise PydanticCustomError(
                "too_long",
                "Input should have at most {most} bytes as JSON, not {size}",
                {"most": MOST_METADATA_BYTES, "size": size},
            )
        return value

    @field_validator("webhook")
    @classmethod
    def _one_webhook(cls, value: WebhookWish | None, info: Any) -> WebhookWish | None:
        if value is not None and info.data.get("webhook_url") is not None:
            raise PydanticCustomError("two_webhooks", "Give webhook or webhook_url, not both")
        return value
