"""What requests and answers about dead letters look like."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from common.contracts.jobs import DeadReason, Task
from common.jobs import partitioned_queue
from gateway.admin.dlq.listing import FINGERPRINT_DIGITS

#: Dead letters redriven by one request, and how many of them unless it says.
REDRIVE_MAX = 1000
REDRIVE_DEFAULT = 100
_ID = "1760000000000-0"
_FINGERPRINT = "9c1f0a27b3d45e68"
_UUID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"


#: Under which name those who check an id are told how many partitions there are.
PARTITIONS = "partitions"


def canonical_id(raw: str, partitions: int) -> str | None:
    """The id of a dead letter in the one way we write it; None for what is none."""
    name = partitioned_queue.parse_dead_letter_id(raw, partitions)
    return None if name is None else name.format(partitions)


def _checked_id(raw: str, info: ValidationInfo) -> str:
    known = canonical_id(raw, (info.context or {}).get(PARTITIONS, 1))
    if known is None:
        raise PydanticCustomError("dead_letter_id", f"Input should be an id such as {_ID}")
    return known


DeadLetterIdStr = Annotated[str, AfterValidator(_checked_id)]
DEAD_LETTER_ID: TypeAdapter[str] = TypeAdapter(DeadLetterIdStr)
Fingerprint = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{FINGERPRINT_DIGITS}}}$")]


def audit_target(reason: DeadReason | None, fingerprint: str | None) -> str:
    """Which letters, in few words, for the trail."""
    if reason is not None:
        return f"reason={reason.value}"
    return "all" if fingerprint is None else f"fingerprint={fingerprint}"


class DeadLetterView(BaseModel):
    """A message that could not become a finished job."""

    id: str = Field(
        description="Of several partitions, the number of its own follows behind a dot.",
        examples=[_ID],
    )
    reason: str = Field(examples=[DeadReason.EXHAUSTED.value])
    job_id: str | None = Field(description="The job it was about.", examples=[_UUID])
    message_id: str = Field(description="Id of the queue message.", examples=["1759999999999-0"])
    ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    attempts: int = Field(examples=[5])
    first_error: Any = Field(None, description="Of the first failed attempt.")
    last_error: Any = Field(None, description="Of the last one.")
    fields: Any = Field(None, description="The queue message as it was.")


class DeadLetterPage(BaseModel):
    """Dead letters, newest first."""

    items: list[DeadLetterView]
    total: int = Field(description="How many there are, whatever their reason.", examples=[1])
    next: str | None = Field(
        description="Pass it as `before` for the next page; null when there is none.",
        examples=[None],
    )


class DeadLetterGroup(BaseModel):
    """Dead letters that failed alike: their messages differ only in numbers and ids."""

    fingerprint: str = Field(
        description="Pass it on to list, redrive or purge exactly these.", examples=[_FINGERPRINT]
    )
    count: int = Field(examples=[12])
    reason: str = Field(examples=[DeadReason.EXHAUSTED.value])
    task: str | None = Field(
        description="Null where the message has none.", examples=[Task.CHAT.value]
    )
    kind: str | None = Field(description="Of the last error.", examples=["model_unavailable"])
    message: str | None = Field(
        description="Of the last error, with `#` for numbers and `<id>` for ids.",
        examples=["no answer within # s"],
    )
    newest_id: str = Field(examples=[_ID])
    newest_job_id: str | None = Field(examples=[_UUID])
    newest_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    oldest_id: str = Field(examples=[_ID])
    oldest_ts: int = Field(examples=[1760000000000])


class DeadLetterGroups(BaseModel):
    """Dead letters by how they failed, the largest group first."""

    groups: list[DeadLetterGroup]
    total: int = Field(description="How many dead letters there are.", examples=[12])
    looked_at: int = Field(description="How many were counted: the newest.", examples=[12])
    complete: bool = Field(description="False where letters or small groups were left out.")


class RedrivenJob(BaseModel):
    """The job that a dead letter became."""

    job_id: str = Field(examples=[_UUID])
    dead_letter_id: str = Field(examples=[_ID])


class RedriveRequest(BaseModel):
    """Which dead letters become jobs again, and how fast."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"all": True, "limit": 100, "rate_per_s": 10}]},
    )

    ids: Annotated[list[DeadLetterIdStr], Field(max_length=REDRIVE_MAX)] | None = Field(
        None, description="These; or else `reason`, `fingerprint` or `all`, and no two of them."
    )
    reason: DeadReason | None = Field(None, description="Those put aside for this reason.")
    fingerprint: Fingerprint | None = Field(
        None, description="Those of one group of `GET /v1/dlq/groups`."
    )
    all: Annotated[bool, Field(strict=True)] | None = Field(None, description="Every one.")
    limit: Annotated[int, Field(strict=True, ge=1, le=REDRIVE_MAX)] | None = Field(
        None, description=f"Most jobs made. Default: {REDRIVE_DEFAULT}, or every one of `ids`."
    )
    # The slowest that keeps the last of a thousand jobs within thirty days.
    rate_per_s: float = Field(
        10.0, strict=True, ge=0.001, le=1000, description="Jobs put on the queue per second."
    )
    dry_run: bool = Field(False, strict=True, description="Only tell what would be done.")

    @model_validator(mode="after")
    def _one_choice(self) -> RedriveRequest:
        choices = (self.ids, self.reason, self.fingerprint, self.all or None)
        if sum(choice is not None for choice in choices) != 1:
            raise PydanticCustomError(
                "one_choice", "Give exactly one of ids, reason, fingerprint and all"
            )
        return self

    @property
    def target(self) -> str:
        if self.ids is not None:
            more = f" and {len(self.ids) - 8} more" if len(self.ids) > 8 else ""
            return f"ids={','.join(self.ids[:8])}{more}"
        return audit_target(self.reason, self.fingerprint)

    @property
    def effective_limit(self) -> int:
        """How many jobs the run may make."""
        usual = REDRIVE_DEFAULT if self.ids is None else REDRIVE_MAX
        return usual if self.limit is None else self.limit


class ScheduledRedrive(RedrivenJob):
    """The same, with the milliseconds after which it is put on the queue."""

    delay_ms: int = Field(examples=[0])


class SkippedRedrive(BaseModel):
    """A dead letter that stays where it is."""

    dead_letter_id: str = Field(examples=[_ID])
    code: str = Field(description="As a problem's code.", examples=["not_redrivable"])


class RedriveReport(BaseModel):
    """What a run did, or would do."""

    redriven: list[ScheduledRedrive]
    skipped: list[SkippedRedrive]
    dry_run: bool


class PurgeReport(BaseModel):
    """How many dead letters were forgotten."""

    purged: int = Field(examples=[3])
