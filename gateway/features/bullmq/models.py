"""Request and response models of `/v1/bullmq`, with BullMQ's names and limits."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from sluice.common.contracts.bullmq import BullAnswer, BullState

EXAMPLE_REQUEST: Final[dict[str, Any]] = {
    "name": "video-generation",
    "data": {"videoId": "550e8400-e29b-41d4-a716-446655440000"},
    "opts": {
        "priority": 1,
        "attempts": 3,
        "backoff": {"type": "exponential", "delay": 1000},
    },
}
#: BullMQ's maximum.
MOST_PRIORITY: Final = 2_097_151
#: A year. BullMQ's encoding of times fits a double up to 2039.
LONGEST_DELAY_MS: Final = 365 * 24 * 3600 * 1000
MOST_ATTEMPTS: Final = 1000
LONGEST_ID: Final = 128
LONGEST_NAME: Final = 256

_Count = Annotated[int, Field(strict=True, ge=0, le=1 << 31)]
_Delay = Annotated[int, Field(strict=True, ge=0, le=LONGEST_DELAY_MS)]
_STRICT_CONFIG = ConfigDict(extra="forbid")


def is_job_id(value: str) -> bool:
    """True if a client may choose this id."""
    return (
        0 < len(value) <= LONGEST_ID
        and value.isprintable()
        and not any(sign in value for sign in ":/ ")
        and not value.isdigit()
    )


def _job_id(value: str) -> str:
    if not is_job_id(value):
        raise PydanticCustomError(
            "bull_id",
            "Input should be 1 to 128 printable characters, without : / and spaces, and not only "
            "digits, which BullMQ assigns itself",
        )
    return value


def _printable(value: str) -> str:
    if not value.isprintable():
        raise PydanticCustomError("printable", "Input should be printable")
    return value


class BullBackoffOptions(BaseModel):
    """How long to wait between attempts."""

    model_config = _STRICT_CONFIG

    type: Literal["fixed", "exponential"] = Field(
        description="The same wait each time, or doubled each time."
    )
    delay: _Delay = Field(0, description="Milliseconds before the second attempt.")
    jitter: Annotated[float, Field(strict=True, ge=0, le=1)] | None = Field(
        None, description="Random part of the wait, 0 to 1."
    )


class BullRetentionOptions(BaseModel):
    """Which finished jobs are kept."""

    model_config = _STRICT_CONFIG

    count: _Count | None = Field(None, description="Number of jobs to keep.")
    age: _Count | None = Field(None, description="Seconds to keep jobs.")
    limit: _Count | None = Field(None, description="Maximum number of jobs removed at once.")


class BullDeduplicationOptions(BaseModel):
    """When a job counts as a duplicate of another one."""

    model_config = _STRICT_CONFIG

    id: Annotated[
        str, Field(strict=True, min_length=1, max_length=LONGEST_ID), AfterValidator(_printable)
    ] = Field(description="Jobs with the same id are duplicates.")
    ttl: _Delay | None = Field(
        None,
        description="Milliseconds for which duplicates are ignored. Default: until the job ends.",
    )
    extend: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether a duplicate restarts the ttl."
    )
    replace: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether a duplicate replaces a delayed job."
    )
    keepLastIfActive: Annotated[bool, Field(strict=True)] | None = Field(  # noqa: N815
        None, description="Whether the last duplicate added while the job runs is run after it."
    )


Retention = Annotated[bool, Field(strict=True)] | _Count | BullRetentionOptions


class BullJobOptions(BaseModel):
    """Options of BullMQ's `add`."""

    model_config = _STRICT_CONFIG

    priority: Annotated[int, Field(strict=True, ge=0, le=MOST_PRIORITY)] | None = Field(
        None,
        description="1 is the highest priority; jobs without priority (0) run before all others.",
    )
    delay: _Delay | None = Field(None, description="Milliseconds until the job may run.")
    attempts: Annotated[int, Field(strict=True, ge=1, le=MOST_ATTEMPTS)] | None = Field(
        None, description="Maximum number of attempts. Default: 1."
    )
    backoff: _Delay | BullBackoffOptions | None = Field(
        None, description="The wait between attempts; a number means a fixed wait in milliseconds."
    )
    jobId: Annotated[str, Field(strict=True), AfterValidator(_job_id)] | None = Field(  # noqa: N815
        None,
        description="The job's id. If a job has this id, nothing is added. Default: a number.",
    )
    lifo: Annotated[bool, Field(strict=True)] | None = Field(
        None, description="Whether the job runs before those already waiting."
    )
    removeOnComplete: Retention | None = Field(  # noqa: N815
        None,
        description="Whether the job is removed when it completes; or which completed jobs to "
        "keep, as a number or as count and age.",
    )
    removeOnFail: Retention | None = Field(  # noqa: N815
        None, description="The same for failed jobs."
    )
    deduplication: BullDeduplicationOptions | None = None
    keepLogs: _Count | None = Field(  # noqa: N815
        None, description="Maximum number of log lines to keep."
    )
    stackTraceLimit: _Count | None = Field(  # noqa: N815
        None, description="Maximum number of stack traces to keep."
    )


class AddRequest(BaseModel):
    """A job for a BullMQ queue."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE_REQUEST]})

    name: Annotated[
        str, Field(strict=True, min_length=1, max_length=LONGEST_NAME), AfterValidator(_printable)
    ] = Field(description="Name of the job, which selects its processor.")
    data: Any = Field({}, description="Any JSON, passed on unchanged.")
    opts: BullJobOptions = Field(default_factory=BullJobOptions)


class AddOutcome(str, Enum):
    """Result of a request to add a job."""

    ADDED = "added"
    #: The job was added before with this Idempotency-Key.
    REPLAYED = "replayed"
    #: A job with this `jobId` exists; nothing was added.
    DUPLICATE = "duplicate"
    #: The job is a duplicate by its `deduplication`; nothing was added.
    DEDUPLICATED = "deduplicated"


class AddJobResponse(BaseModel):
    """The job is in the queue; watch it at `Location` + `/events`."""

    id: str = Field(examples=["1"])
    queue: str = Field(examples=["video-generation"])
    outcome: AddOutcome


class BullJobView(BaseModel):
    """A job, with BullMQ's names."""

    id: str = Field(examples=["1"])
    queue: str = Field(examples=["video-generation"])
    name: str = Field(examples=["video-generation"])
    state: BullState
    data: Any
    opts: Any = Field(description="The options it was added with.")
    progress: Any = Field(
        description="A number from 0 to 100, or any JSON that its worker reports."
    )
    returnvalue: Any = None
    failedReason: str | None = None  # noqa: N815
    stacktrace: Any = Field(description="One entry for each failed attempt.")
    attemptsMade: int  # noqa: N815
    attemptsStarted: int  # noqa: N815
    stalledCounter: int = Field(description="How often its worker lost the lock.")  # noqa: N815
    priority: int
    delay: int = Field(description="Milliseconds.")
    timestamp: int = Field(description="Time it was added, Unix milliseconds.")
    processedOn: int | None = None  # noqa: N815
    finishedOn: int | None = None  # noqa: N815
    processedBy: str | None = Field(None, description="The worker's name.")  # noqa: N815
    parentKey: str | None = None  # noqa: N815


class RemovalOutcome(str, Enum):
    """Result of a request to remove a job."""

    REMOVED = BullAnswer.REMOVED.value
    #: The job is running. A Sluice worker stops it; other workers finish it.
    CANCELING = BullAnswer.CANCELING.value


class RemoveJobResponse(BaseModel):
    """The job was removed, or will be stopped."""

    id: str = Field(examples=["1"])
    queue: str = Field(examples=["video-generation"])
    outcome: RemovalOutcome
