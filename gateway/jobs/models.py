"""Request and response models of `/v1/jobs`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from sluice.common import codec
from sluice.common.contracts.jobs import (
    RAW_PAYLOAD,
    TTL_MAX_S,
    TTL_MIN_S,
    DataField,
    JobField,
    Status,
    Task,
)
from sluice.common.contracts.queue import Lane
from sluice.common.jobs.options import Backoff

#: Characters of an error message in a summary.
MOST_MESSAGE: Final = 200
#: Fields of the hash that a summary needs.
SUMMARY_FIELDS: Final = (
    *(JobField.TASK, JobField.STATUS, JobField.CREATED_TS, JobField.UPDATED_TS),
    *(JobField.TTL_S, JobField.ERROR),
)
SUMMARY_FIELD_NAMES: Final = tuple(field for field in SUMMARY_FIELDS)


def summary(job_id: str, values: Sequence[bytes | None]) -> dict[str, Any]:
    """From HMGET of `SUMMARY_FIELD_NAMES`; times as in `GET /v1/jobs/{job_id}`."""
    fields = {
        field.encode(): value for field, value in zip(SUMMARY_FIELDS, values) if value is not None
    }
    job = codec.Job.from_hash(fields, job_id)
    return {
        JobField.JOB_ID: job_id,
        JobField.TASK: job.task,
        JobField.STATUS: job.status,
        JobField.CREATED_TS: job.created_ts,
        JobField.UPDATED_TS: job.updated_ts,
        JobField.TTL_S: job.ttl_s,
        JobField.ERROR: _short_error(job.error),
    }


def _short_error(raw: bytes) -> dict[str, str] | None:
    if not raw:
        return None
    error = codec.parse_payload(raw)
    kind, message = (error.get(each) for each in (DataField.KIND, DataField.MESSAGE))
    message = message or error.get(RAW_PAYLOAD)  # of a third-party worker, not JSON
    return {
        DataField.KIND: str(kind or "")[:MOST_MESSAGE],
        DataField.MESSAGE: str(message or "")[:MOST_MESSAGE],
    }


EXAMPLE_REQUEST: dict[str, Any] = {
    JobField.TASK: Task.CHAT.value,
    JobField.PAYLOAD: {"text": "hello"},
}
#: How far ahead a job may be scheduled.
DELAY_MAX_S = TTL_MAX_S
_UUID = "6f1c0f0e-8f0a-4a51-9a55-0d4a6c4f2b7e"
_USUAL = Backoff()
_DATE_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,20})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})\Z"
)


_MILLISECONDS = re.compile(r"[0-9]{1,16}\Z")


def _date_time(value: object) -> object:
    """Reject bare dates and numbers, which pydantic would accept."""
    if not isinstance(value, str) or not _DATE_TIME.match(value):
        raise PydanticCustomError(
            "date_time",
            "Input should be an RFC 3339 date-time with an offset, such as 2030-01-31T08:00:00Z",
        )
    return value


def _unix_ms(value: object) -> object:
    """Unix milliseconds, also from a date-time."""
    if isinstance(value, str) and _MILLISECONDS.match(value):
        return int(value)
    try:
        return max(0, int(_MOMENT.validate_python(value).timestamp() * 1000))
    except ValidationError:
        raise PydanticCustomError(
            "time",
            "Input should be Unix milliseconds, or an RFC 3339 date-time with an offset, such as "
            "2030-01-31T08:00:00Z (%2B for the + of an offset)",
        ) from None


_A_TIME: TypeAdapter[Any] = TypeAdapter(
    Annotated[int, Field(ge=0, le=10**16 - 1)] | AwareDatetime  # what clients send
)
#: A time in a query, in milliseconds.
Time = Annotated[int, BeforeValidator(_unix_ms), WithJsonSchema(_A_TIME.json_schema())]
#: Serialised as a point in time, so that the offset does not matter for comparison.
Moment = Annotated[AwareDatetime, BeforeValidator(_date_time), PlainSerializer(datetime.timestamp)]


_MOMENT: TypeAdapter[datetime] = TypeAdapter(Moment)


class BackoffOptions(BaseModel):
    """How long to wait between attempts."""

    model_config = ConfigDict(extra="forbid")

    initial_s: float = Field(
        _USUAL.initial_s, strict=True, ge=0, le=3600, description="Before the second attempt."
    )
    factor: float = Field(
        _USUAL.factor, strict=True, ge=1, le=100, description="Growth from attempt to attempt."
    )
    max_s: float = Field(_USUAL.max_s, strict=True, ge=0, le=86_400, description="Longest wait.")
    jitter: float = Field(
        _USUAL.jitter, strict=True, ge=0, le=1, description="Random part of the wait, 0 to 1."
    )


class CreateJobRequest(BaseModel):
    """A job to submit."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [EXAMPLE_REQUEST]},
    )

    task: Task = Field(description="The kind of work; selects the handler.")
    payload: dict[str, Any] = Field(description="The handler's input, passed on unchanged.")
    ttl_s: Annotated[int, Field(strict=True, ge=TTL_MIN_S, le=TTL_MAX_S)] | None = Field(
        None, description="Seconds the job is kept after its last change. Default: JOB_TTL_S."
    )
    timeout_s: Annotated[float, Field(strict=True, gt=0, le=TTL_MAX_S)] | None = Field(
        None, description="Seconds an attempt may run. Default: the handler's, or JOB_TIMEOUT_S."
    )
    max_attempts: Annotated[int, Field(strict=True, ge=1, le=1000)] | None = Field(
        None, description="Maximum number of attempts. Default: the handler's, or MAX_ATTEMPTS."
    )
    backoff: BackoffOptions | None = Field(
        None, description="The wait between attempts. Default: the handler's, or the worker's."
    )
    lane: Lane | None = Field(None, description="Priority lane, one of LANES. Default: normal.")
    delay_s: Annotated[float, Field(strict=True, ge=0, le=DELAY_MAX_S)] | None = Field(
        None, description="Seconds until the job is put on the queue."
    )
    run_at: Moment | None = Field(
        None,
        description="When the job is put on the queue, instead of delay_s: at most 30 days ahead. "
        "A time in the past means now.",
        examples=["2030-01-31T08:00:00Z"],
    )

    @field_validator("run_at")
    @classmethod
    def _due(cls, value: datetime | None, info: ValidationInfo) -> datetime | None:
        if value is not None and info.data.get("delay_s") is not None:
            raise PydanticCustomError("two_times", "Give delay_s or run_at, not both")
        if value is not None and value.timestamp() - time.time() > DELAY_MAX_S:
            raise PydanticCustomError("too_late", "Input should be at most 30 days ahead")
        return value


class JobError(BaseModel):
    """Why a job failed. That of a third-party worker may have other members."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field("", description="Stable name of the error.", examples=["handler_error"])
    message: str = Field("", description="What went wrong.")
    attempt: int = Field(1, description="The attempt that failed.")


class JobReference(BaseModel):
    """The job was accepted; watch it at `Location` + `/events`."""

    job_id: str = Field(examples=[_UUID])


class SubmitJobResponse(JobReference):
    """The accepted job: its id, and all members of the job if it ended while the request waited."""

    # One schema for both answers: Go's generator decodes every answer as the one with the lowest
    # status.
    task: Task | None = None
    payload: Any = Field(None, examples=[{"text": "hello"}])
    status: Status | None = None
    created_ts: int | None = Field(None, description="Unix milliseconds.")
    updated_ts: int | None = Field(None, description="Unix milliseconds.")
    ttl_s: int | None = None
    result: Any = None
    error: JobError | None = None


class JobView(BaseModel):
    """A job."""

    job_id: str = Field(examples=[_UUID])
    task: Task
    payload: Any = Field(examples=[{"text": "hello"}])
    status: Status
    created_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    updated_ts: int = Field(description="Unix milliseconds.", examples=[1760000000042])
    ttl_s: int = Field(examples=[86400])
    result: Any = Field(None, examples=[{"text": "echo(task=chat): {'text': 'hello'}", "ms": 0}])
    error: JobError | None = Field(None, examples=[None])


class ErrorSummary(BaseModel):
    """An error in short."""

    kind: str
    message: str


class JobSummary(BaseModel):
    """A job in short."""

    job_id: str = Field(examples=[_UUID])
    task: Task
    status: Status
    created_ts: int = Field(description="Unix milliseconds.", examples=[1760000000000])
    updated_ts: int = Field(description="Unix milliseconds.", examples=[1760000000042])
    ttl_s: int = Field(examples=[86400])
    error: ErrorSummary | None = Field(
        description="Error of the job, or of its last failed attempt.", examples=[None]
    )


class JobPage(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]
    next: str | None = Field(
        description="Pass it as `cursor` for the next page; null on the last page. A page may have "
        "fewer jobs than `limit`, even none, and still a `next`.",
        examples=[f"1760000000000-{_UUID}"],
    )
    looked_at: int = Field(description="Jobs that were read for this page.", examples=[50])


class CancelRequest(BaseModel):
    """Why a job is canceled."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str, Field(strict=True, max_length=500)] | None = Field(
        None,
        description="Recorded in the job's events.",
        examples=["the customer has left"],
    )


class CancelView(BaseModel):
    """Result of a cancel request."""

    job_id: str = Field(examples=[_UUID])
    status: Status = Field(
        description="The job's status: canceled, running, or how it had ended before."
    )
    canceling: bool | None = Field(
        None, description="True while a worker has yet to stop the job; absent otherwise."
    )
