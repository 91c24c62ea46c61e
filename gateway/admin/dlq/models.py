"""Request and response models of `/v1/dlq`."""

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

from sluice.common.contracts.jobs import DeadReason, Task
from sluice.common.jobs import partitioned_queue
from sluice.gateway.admin.dlq.listing import FINGERPRINT_DIGITS

#: Most dead letters redriven by one request, and the default.
REDRIVE_MAX = 1000
REDRIVE_DEFAULT = 100
_ID = "1760000000000-0"
_FINGERPRINT = "9c1f0a27b3d45e68"
_UUID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"


#: Key in the validation context for the number of partitions.
PARTITIONS = "partitions"


def canonical_id(raw: str, partitions: int) -> str | None:
    """The canonical form of a dead letter's id; None for an invalid one."""
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
    """The selected dead letters, as recorded in the audit log."""
    if reason is not None:
        return f"reason={reason.value}"
    return "all" if fingerprint is None else f"fingerprint={fingerprint}"


class DeadLetterView(BaseModel):
    """A message whose job could not be finished."""

    id: str = Field(
        description="With several partitions, a dot and the number of the partition follow.",
        examples=[_ID],
    )
    reason: str = Field(examples=[DeadReason.EXHAUSTED.value])
    job_id: str | None = Field(description="The job of the message.", examples=[_UUID])
    message_id: str = Field(description="Id of the queue message.", examples=["1759999999999-0"])
    ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    attempts: int = Field(examples=[5])
    first_error: Any = Field(None, description="Error of the first failed attempt.")
    last_error: Any = Field(None, description="Error of the last failed attempt.")
    fields: Any = Field(None, description="The original queue message.")


class DeadLetterPage(BaseModel):
    """Dead letters, newest first."""

    items: list[DeadLetterView]
    total: int = Field(description="Number of all dead letters, with any reason.", examples=[1])
    next: str | None = Field(
        description="Pass it as `before` for the next page; null on the last page.",
        examples=[None],
    )


class DeadLetterGroup(BaseModel):
    """Dead letters with the same failure: their messages differ only in numbers and ids."""

    fingerprint: str = Field(
        description="Selects these dead letters to list, redrive or purge them.",
        examples=[_FINGERPRINT],
    )
    count: int = Field(examples=[12])
    reason: str = Field(examples=[DeadReason.EXHAUSTED.value])
    task: str | None = Field(
        description="Null if the message has none.", examples=[Task.CHAT.value]
    )
    kind: str | None = Field(description="Kind of the last error.", examples=["model_unavailable"])
    message: str | None = Field(
        description="Message of the last error, with `#` for numbers and `<id>` for ids.",
        examples=["no answer within # s"],
    )
    newest_id: str = Field(examples=[_ID])
    newest_job_id: str | None = Field(examples=[_UUID])
    newest_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    oldest_id: str = Field(examples=[_ID])
    oldest_ts: int = Field(examples=[1760000000000])


class DeadLetterGroups(BaseModel):
    """Dead letters grouped by failure, the largest group first."""

    groups: list[DeadLetterGroup]
    total: int = Field(description="Number of all dead letters.", examples=[12])
    looked_at: int = Field(
        description="Number of dead letters that were grouped: the newest ones.", examples=[12]
    )
    complete: bool = Field(description="False if dead letters or small groups were left out.")


class RedrivenJob(BaseModel):
    """The new job of a dead letter."""

    job_id: str = Field(examples=[_UUID])
    dead_letter_id: str = Field(examples=[_ID])


class RedriveRequest(BaseModel):
    """Which dead letters are redriven, and how fast."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"all": True, "limit": 100, "rate_per_s": 10}]},
    )

    ids: Annotated[list[DeadLetterIdStr], Field(max_length=REDRIVE_MAX)] | None = Field(
        None,
        description="These dead letters. Give exactly one of `ids`, `reason`, `fingerprint` and "
        "`all`.",
    )
    reason: DeadReason | None = Field(None, description="Dead letters with this reason.")
    fingerprint: Fingerprint | None = Field(
        None, description="Dead letters of one group of `GET /v1/dlq/groups`."
    )
    all: Annotated[bool, Field(strict=True)] | None = Field(None, description="All dead letters.")
    limit: Annotated[int, Field(strict=True, ge=1, le=REDRIVE_MAX)] | None = Field(
        None, description=f"Maximum number of jobs. Default: {REDRIVE_DEFAULT}, or all `ids`."
    )
    # The minimum keeps the last of a thousand jobs within thirty days.
    rate_per_s: float = Field(
        10.0, strict=True, ge=0.001, le=1000, description="Jobs put on the queue per second."
    )
    dry_run: bool = Field(False, strict=True, description="Only report what would be done.")

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
        """Most jobs that the run may create."""
        usual = REDRIVE_DEFAULT if self.ids is None else REDRIVE_MAX
        return usual if self.limit is None else self.limit


class ScheduledRedrive(RedrivenJob):
    """A redriven job, with the milliseconds until it is put on the queue."""

    delay_ms: int = Field(examples=[0])


class SkippedRedrive(BaseModel):
    """A dead letter that was not redriven."""

    dead_letter_id: str = Field(examples=[_ID])
    code: str = Field(
        description="The reason, as the code of a problem.", examples=["not_redrivable"]
    )


class RedriveReport(BaseModel):
    """Result of a redrive, or of its dry run."""

    redriven: list[ScheduledRedrive]
    skipped: list[SkippedRedrive]
    dry_run: bool


class PurgeReport(BaseModel):
    """Number of purged dead letters."""

    purged: int = Field(examples=[3])
