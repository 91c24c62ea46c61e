"""Request models of the workflow API."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sluice.common import codec
from sluice.common.contracts.rag import DEFAULT_NAMESPACE
from sluice.common.contracts.workflow.statuses import (
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
from sluice.common.features.workflows.definitions import MOST_STEPS, ReviewOptions
from sluice.gateway.features.rag.models import NamespaceName

#: Most members of an object in a request.
MOST_MEMBERS: Final = 64


class StrictModel(BaseModel):
    """Base of request models: unknown members are refused, and their number is limited."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_members(cls, value: Any) -> Any:
        return _checked(value, MOST_MEMBERS)


def limit_entries(most: int, *members: str) -> Any:
    """A validator that limits the number of entries of these members, which are objects."""

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


#: Longest wait for a step, in seconds.
MOST_WAIT_S = 30.0
MOST_NOTE_CHARS = 2_000
#: Bytes of all notes of one request: they are stored together, as one item of the review.
MOST_NOTES_BYTES = 32 * 1024
MOST_TEXT_CHARS = 4_000
#: Most variants in one proposal.
MOST_VARIANTS = 100
#: Largest number of an item or version; larger ones may be inexact in Lua.
MOST_NUMBER = 1 << 31


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "Input should not be blank")
    return text


Note = Annotated[str, Field(max_length=MOST_NOTE_CHARS)]
Version = Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBER)]
#: `p_001`, or its number as text.
ItemText = Annotated[str, Field(strict=True, min_length=1, max_length=64)]
#: The same, or the number itself.
ItemName = ItemText | Annotated[int, Field(strict=True, ge=1, le=MOST_NUMBER)]
Confidence = Annotated[float, Field(ge=0, le=1, strict=True)]
NonBlankText = Annotated[
    str, Field(min_length=1, max_length=MOST_TEXT_CHARS), AfterValidator(_not_blank)
]
Term = NonBlankText | Annotated[list[NonBlankText], Field(min_length=1, max_length=MOST_VARIANTS)]


class _MutationRequest(StrictModel):
    """Base of requests that change a job."""

    idempotency_key: str | None = Field(
        None, description="Same as the header `Idempotency-Key`: 1 to 255 printable characters."
    )


class ExecuteRequest(_MutationRequest):
    """Options for the execution of a step."""

    payload: dict[str, Any] | None = Field(
        None, description="The step's options. Default: those given last."
    )
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S, strict=True)] | None = Field(
        None, description="Seconds to wait for the result before the response is 202."
    )
    strict: bool = Field(
        False, strict=True, description="Refuse if earlier steps are not complete."
    )
    discard_decisions: bool = Field(
        False, strict=True, description="Execute the step even if decisions and edits are lost."
    )


class DecisionInput(StrictModel):
    """The decision on one proposal."""

    id: ItemName = Field(description="Id or number of the proposal.", examples=["p_001"])
    action: Action
    note: Note = ""
    version: Version | None = Field(None, description="Refuse if the proposal has another version.")


class ReviewPayload(StrictModel):
    """The `payload` of a review."""

    decisions: list[DecisionInput] = Field(default_factory=list, max_length=MOST_ITEMS)
    finalize: bool = Field(
        False, strict=True, description="End the review; undecided proposals are rejected."
    )

    @field_validator("decisions")
    @classmethod
    def _short_notes(cls, value: list[DecisionInput]) -> list[DecisionInput]:
        size = sum(len(decision.note.encode()) for decision in value)
        if size > MOST_NOTES_BYTES:
            raise PydanticCustomError(
                "too_long",
                "All notes together should have at most {most} bytes, not {size}",
                {"most": MOST_NOTES_BYTES, "size": size},
            )
        return value


class BulkFilter(StrictModel):
    """Selects proposals."""

    status: ItemStatus | None = None
    min_confidence: Confidence | None = None


class BulkRequest(_MutationRequest):
    """One action for many proposals: those listed, those that match a filter, or all."""

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
        description="Expected versions by id: proposals with another version are left unchanged.",
    )

    _few_versions = limit_entries(MOST_ITEMS, "versions")

    @model_validator(mode="after")
    def _one_choice(self) -> BulkRequest:
        chosen = (self.proposal_ids is not None, self.filter is not None, self.all)
        if sum(chosen) != 1:
            raise PydanticCustomError(
                "one_choice", "Give exactly one of proposal_ids, filter and all"
            )
        if self.versions and self.proposal_ids is None:
            raise PydanticCustomError("one_choice", "versions require proposal_ids")
        return self


class OntologyRequest(_MutationRequest):
    """Changes to a proposal."""

    model_config = ConfigDict(
        populate_by_name=True,
        json_schema_extra={"examples": [{"to": "dead letter queue", "version": 1}]},
    )

    to: Term | None = None
    from_: Term | None = Field(None, alias="from")
    confidence: Confidence | None = None
    rationale: Annotated[str, Field(max_length=MOST_TEXT_CHARS)] | None = None
    note: Note | None = None
    auto_approve: bool = Field(True, strict=True, description="Also approve the proposal.")
    version: Version | None = Field(
        None,
        description="Same as the header `If-Match`: refuse if the proposal has another version.",
    )
    proposed_folder: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="For a `file_move`: the folder in `to`."
    )
    proposed_filename: (
        Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_not_blank)] | None
    ) = Field(None, description="For a `file_move`: the file name in `to`.")


class UndoRequest(_MutationRequest):
    """What to undo."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"undo_token": "undo_p_001"}]})

    undo_token: Annotated[str, Field(pattern=r"^undo_[A-Za-z0-9_]{1,64}$")] = Field(
        description="Token of an item (`undo_p_001`) or of an operation (`undo_9f2c41d0`)."
    )
    wait_s: Annotated[float, Field(ge=0, le=MOST_WAIT_S, strict=True)] | None = Field(
        None, description="Seconds to wait, if a worker has to undo it."
    )


class CancelWorkflowRequest(_MutationRequest):
    """Why the job is cancelled."""

    reason: Annotated[str, Field(max_length=500)] = ""


#: Bytes of JSON that `metadata` may have.
MOST_METADATA_BYTES = 16 * 1024
_USUAL = ReviewOptions()
EXAMPLE: dict[str, Any] = {
    "workflow": MEMORY_FIRST,
    "auto_advance": True,
    SOURCES_STEP: [{"type": "text", "title": "Handbook", "text": "A Dead Letter Queue (DLQ) …"}],
}


class WebhookOptions(StrictModel):
    """The webhook of a job."""

    url: Annotated[str, Field(strict=True, min_length=1)] = Field(
        description="http or https, at most 2048 characters, no user name.",
        examples=["https://example/callback"],
    )
    events: list[WorkflowEvent] | None = Field(
        None,
        min_length=1,
        max_length=len(WorkflowEvent),
        description="Event types. Default: all except `step.progress`, `step.reset`, "
        "`item.changed` and `undo.applied`.",
    )


class ReviewPolicy(StrictModel):
    """How proposals are reviewed."""

    mode: ReviewMode = Field(
        _USUAL.mode,
        description="`auto`: proposals with enough confidence are approved automatically.",
    )
    auto_approve_min_confidence: float = Field(
        _USUAL.min_confidence,
        strict=True,
        ge=0,
        le=1,
        description="Confidence that is enough for automatic approval.",
    )
    timeout_s: Annotated[float, Field(strict=True, gt=0, le=LONGEST_TTL_S)] | None = Field(
        None, description="Seconds for the review. Default: no limit."
    )
    on_timeout: OnTimeout = Field(_USUAL.on_timeout, description="What happens after the timeout.")

    def options(self) -> ReviewOptions:
        return ReviewOptions(
            self.mode, self.auto_approve_min_confidence, self.timeout_s, self.on_timeout
        )


class CreateWorkflowRequest(StrictModel):
    """A workflow job to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    workflow: Annotated[str, Field(strict=True, max_length=64)] = Field(
        MEMORY_FIRST, description="Name of the workflow."
    )
    idempotency_key: Annotated[str, Field(strict=True)] | None = Field(
        None, description="Same as the header `Idempotency-Key`: 1 to 255 printable characters."
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Any JSON object, at most 16 KB."
    )
    webhook_url: Annotated[str, Field(strict=True, min_length=1)] | None = Field(
        None, description="Short form of `webhook`."
    )
    webhook: WebhookOptions | None = Field(None, description="Receives the events of the job.")
    auto_advance: bool = Field(
        False, strict=True, description="Start the next step when a step completes."
    )
    namespace: NamespaceName = Field(
        DEFAULT_NAMESPACE, description="Namespace of documents that the workflow adds to."
    )
    sources: list[Any] | None = Field(
        None, description="Short form of the options of the step `sources`."
    )
    steps: dict[str, dict[str, Any]] = Field(
        default_factory=dict, max_length=MOST_STEPS, description="Options of steps, by name."
    )
    review: ReviewPolicy | None = Field(None, description="How proposals are reviewed.")

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
