"""What requests and answers about webhooks that were given up look like."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from common.contracts.webhooks import RedriveStatus
from gateway.workflow.error_view import ErrorItem
from gateway.workflow.models import PageView

#: Letters that one request may name.
MOST_NAMED = 1_000
_EVENT_ID = "wf_20260214_001:step.completed:ab12cd34"


class AttemptView(BaseModel):
    """What came of one attempt."""

    model_config = ConfigDict(extra="ignore")

    attempt: int = Field(0, examples=[1])
    status: int | None = Field(None, description="Of the answer; null for none.", examples=[503])
    error: str = Field("", examples=["HTTP 503"])
    retryable: bool = Field(False, description="Whether it might have gone better later.")
    at: str = Field("", examples=["2026-02-14T15:40:00Z"])


class RedriveView(BaseModel):
    """How far it has got to be sent again."""

    status: RedriveStatus = Field(description="`none` where nobody has asked for it.")
    at: str | None = Field(examples=["2026-02-14T16:00:00Z"])


class LetterView(BaseModel):
    """An event that its webhook was not told."""

    event_id: str = Field(examples=[_EVENT_ID])
    event_type: str = Field(examples=["step.completed"])
    job_id: str = Field(examples=["wf_20260214_001"])
    url: str = Field(examples=["https://example.com/callback"])
    failed_at: str = Field(examples=["2026-02-14T15:45:00Z"])
    payload: Any = Field(description="The body that was sent.")
    attempts: int = Field(examples=[6])
    attempts_detail: list[AttemptView]
    redrive: RedriveView


class DeliveryView(BaseModel):
    """A webhook with something left to tell."""

    job_id: str = Field(examples=["wf_20260214_001"])
    event_id: str | None = Field(
        description="Of a dead letter that is sent again; null for what a job has to tell."
    )
    url: str = Field(examples=["https://example.com/callback"])
    next_at: str = Field(
        description="When it is tried; while an attempt is under way, when that is given up.",
        examples=["2026-02-14T15:45:00Z"],
    )
    under_way: bool = Field(description="Whether it is being tried just now.")
    waiting: int = Field(description="Events that wait to be told, in order.", examples=[3])
    attempts: int = Field(description="Of the first of them.", examples=[2])
    last: AttemptView | None = Field(description="What came of the last attempt.")


class DeliveryListView(BaseModel):
    """Webhooks with something left to tell, those that are due next first."""

    success: bool = Field(True, examples=[True])
    items: list[DeliveryView]
    total: int = Field(description="How many there are in all.", examples=[3])


class LetterListView(BaseModel):
    """A page of them, the newest first."""

    success: bool = Field(True, examples=[True])
    items: list[LetterView]
    pagination: PageView


class RedriveWebhooksRequest(BaseModel):
    """Which events are sent again."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"event_ids": [_EVENT_ID]}]}
    )

    event_ids: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=256)]],
            Field(min_length=1, max_length=MOST_NAMED),
        ]
        | None
    ) = Field(None, description="These; or else `all`.")
    all: bool = Field(False, strict=True, description="Every one that was not sent again yet.")
    idempotency_key: str | None = Field(
        None, description="As the header `Idempotency-Key`; 1 to 255 printable characters."
    )

    @model_validator(mode="after")
    def _one_choice(self) -> RedriveWebhooksRequest:
        if (self.event_ids is not None) == self.all:
            raise PydanticCustomError("one_choice", "Give exactly one of event_ids and all")
        return self


class RedrivenView(BaseModel):
    """What a redrive set going."""

    success: bool = Field(True, examples=[True])
    redriven: list[str] = Field(description="Events on their way again.", examples=[[_EVENT_ID]])
    skipped: list[str] = Field(
        description="Those that have arrived meanwhile, or are under way.", examples=[[]]
    )
    errors: list[ErrorItem] = Field(default_factory=list)
