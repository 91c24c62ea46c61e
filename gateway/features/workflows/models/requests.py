"""What requests that act on a workflow job look like; the OpenAPI page is made from these."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from common import codec
from common.contracts.rag import DEFAULT_NAMESPACE
from common.contracts.workflow.statuses import (
    LONGEST_TTL_S,
    MEMORY_FIRST,
    MOST_ITEMS,
    SOURCES_STEP,
    Action,
    ItemStatus,
    OnTimeout,
    ReviewMode,
    WorkflowEvent,
)
from common.features.workflows.definitions import MOST_STEPS, ReviewOptions
from gateway.features.rag.models import NamespaceName

#: No object of ours has so many members.
MOST_MEMBERS: Final = 64


class StrictModel(BaseModel):
    """A part of a request that has the members it declares, and no others."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_members(cls, value: Any) -> Any:
        return _checked(value, MOST_MEMBERS)


def limit_entries(most: int, *members: str) -> Any:
    """For a model: these members, objects each, have so many entries at most."""

    def check(value: Any) -> Any:
        return _checked(value, most)

    return field_validator(*members, mode="before")(check)


def _checked(value: Any, most: int) -> Any:
    if isinstance(value, dict) and len(value) > most:
        raise PydanticCustomError(
            "too_long",
            "Input should have at most {most} members, not {count}",
            {"most": most, "count": len(value)},
        )
    return value


#: Longest wait of a request for its step.
MOST_WAIT_S = 30.0
MOST_NOTE_CHARS = 2_000
#: Bytes of all notes of one request: they are kept together, as one item of the review.
MOST_NOTES_BYTES = 32 * 1024
MOST_TEXT_CHARS = 4_000
#: Variants in one proposal.
MOST_VARIANTS = 100
#: Largest number of an item, and of its versions: beyond, a float in Lua would be inexact.
MOST_NUMBER = 1 << 31


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "Input should be more than blanks")
    return text


Note = Annotated[str, Field(max_length=MOST_NOTE_CHARS)]
Version = Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBER)]
#: `p_001`, or its number as text.
ItemText = Annotated[str, Field(strict=True, min_length=1, max_length=64)]
#: The same, or just its number.
ItemName = ItemText | Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBER)]
Confidence = Annotated[float, Field(ge=0, le=1, strict=True)]
NonBlankText = Annotated[
    str, Field(min_length=1, max_length=MOST_TEXT_CHARS), AfterValidator(_not_blank)
]
Term = NonBlankText | Annotated[list[NonBlankText], Field(min_length=1, max_length=MOST_VARIANTS)]


class _MutationRequest(StrictModel):
    """Anything that changes a job."""

    idempotency_key: str | None = Field(
        None, description="As the header `Idempotency-Key`; 1 to 255 printable characters."
    )


class ExecuteRequest(_MutationRequest):
    """Which way to execute a step."""

    payload: dict[str, Any] | None = Field(
        None, description="The step's options. Left out: those it was given last."
    )
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S, strict=True)] | None = Field(
        None, description="Seconds to wait for the result before the answer is 202."
    )
    strict: bool = Field(
        False, strict=True, description="Refuse where earlier steps are not complete."
    )
    discard_decisions: bool = Field(
        False, strict=True, description="Execute it although decisions and edits are lost by it."
    )


class DecisionInput(StrictModel):
    """What becomes of one proposal."""

    id: ItemName = Field(description="Its id, or just its number.", examples=["p_001"])
    action: Action
    note: Note = ""
    version: Version | None = Field(None, description="Refuse where it is another one by now.")


class ReviewPayload(StrictModel):
    """The `payload` of a review."""

    decisions: list[DecisionInput] = Field(default_factory=list, max_length=MOST_ITEMS)
    finalize: bool = Field(
        False, strict=True, description="End the review; what is undecided is rejected."
    )

    @field_validator("decisions")
    @classmethod
    def _short_notes(cls, value: list[DecisionInput]) -> list[DecisionInput]:
        size = sum(len(wish.note.encode()) for wish in value)
        if size > MOST_NOTES_BYTES:
            raise PydanticCustomError(
                "too_long",
                "All notes together should have at most {most} bytes, not {size}",
                {"most": MOST_NOTES_BYTES, "size": size},
            )
        return value


class BulkFilter(StrictModel):
    """Which proposals."""

    status: ItemStatus | None = None
    min_confidence: Confidence | None = None


class BulkRequest(_MutationRequest):
    """One action for many proposals: those named, those that pass a filter, or all."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"action": Action.APPROVE.value, "proposal_ids": ["p_001", "p_002"]}]
        },
    )

    action: Action
    proposal_ids: list[ItemName] | None = Field(None, min_length=1, max_length=MOST_ITEMS)
    filter: BulkFilter | None = None
    all: bool = Field(False, strict=True)
    note: Note = ""
    versions: dict[ItemText, Version] = Field(
        default_factory=dict,
        max_length=MOST_ITEMS,
        description="Of the named ones: leave those that have another version by now.",
    )

    _few_versions = limit_entries(MOST_ITEMS, "versions")

    @model_validator(mode="after")
    def _one_choice(self) -> BulkRequest:
        chosen = (self.proposal_ids is not None, self.filter is not None, self.all)
        if sum(chosen) != 1:
            raise PydanticCustomError(
                "one_choice", "Exactly one of proposal_ids, filter and all says which proposals"
            )
        if self.versions and self.proposal_ids is None:
            raise PydanticCustomError("one_choice", "versions go with proposal_ids only")
        return self


class OntologyRequest(_MutationRequest):
    """What is to be different about a proposal."""

    model_config = ConfigDict(
        populate_by_name=True,
        json_schema_extra={"examples": [{"to": "dead letter queue", "version": 1}]},
    )

    to: Term | None = None
    from_: Term | None = Field(None, alias="from")
    confidence: Confidence | None = None
    rationale: Annotated[str, Field(max_length=MOST_TEXT_CHARS)] | None = None
    note: Note | None = None
    auto_approve: bool = Field(True, strict=True, description="Approve it as well.")
    version: Version | None = Field(
        None, description="As the header `If-Match`: refuse where it is another one by now."
    )
    proposed_folder: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="Of a `file_move`: the folder in `to`."
    )
    proposed_filename: (
        Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_not_blank)] | None
    ) = Field(None, description="Of a `file_move`: the file's name in `to`.")


class UndoRequest(_MutationRequest):
    """What to take back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"undo_token": "undo_p_001"}]})

    undo_token: Annotated[str, Field(pattern=r"^undo_[A-Za-z0-9_]{1,64}$")] = Field(
        description="Of an item (`undo_p_001`) or of an operation (`undo_9f2c41d0`)."
    )
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S, strict=True)] | None = Field(
        None, description="Seconds to wait for a worker, where the undoing takes one."
    )


class CancelRequest(_MutationRequest):
    """Why the job is to end."""

    reason: Annotated[str, Field(max_length=500)] = ""


#: The client's own, as JSON.
MOST_METADATA_BYTES = 16 * 1024
_USUAL = ReviewOptions()
EXAMPLE: dict[str, Any] = {
    "workflow": MEMORY_FIRST,
    "auto_advance": True,
    SOURCES_STEP: [{"type": "text", "title": "Handbook", "text": "A Dead Letter Queue (DLQ) …"}],
}


class WebhookOptions(StrictModel):
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


class ReviewPolicy(StrictModel):
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
        return ReviewOptions(
            self.mode, self.auto_approve_min_confidence, self.timeout_s, self.on_timeout
        )


class CreateWorkflowRequest(StrictModel):
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
    webhook: WebhookOptions | None = Field(None, description="Whom to tell of its events.")
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
    review: ReviewPolicy | None = Field(None, description="How its review goes.")

    _few_steps = limit_entries(MOST_STEPS, "steps")

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
    def _one_webhook(cls, value: WebhookOptions | None, info: Any) -> WebhookOptions | None:
        if value is not None and info.data.get("webhook_url") is not None:
            raise PydanticCustomError("two_webhooks", "Give webhook or webhook_url, not both")
        return value
